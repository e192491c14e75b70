// Package support is the bench's side of a client program: steps, checks, limits and the lines it prints.
package support

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"
)

// How long one step may take, and the whole program; a restart of the server has its own 60 s.
const (
	stepLimit    = 30 * time.Second
	runLimit     = 57 * time.Second
	restartLimit = 117 * time.Second
)

// Long values would drown the reason in the line that tells it.
const reasonLimit = 600

// Run is one scenario on one target. Only the goroutine that runs the scenario may call its methods.
type Run struct {
	Address  string // host:port, or several with commas between
	Prefix   string // what the scenario owns
	step     string
	context  context.Context
	answers  *bufio.Scanner
	cleanups []func()
	output   sync.Mutex
}

// Scenario checks its steps in the order of the scenario's file.
type Scenario func(*Run)

// Start runs the scenario and ends the program with it.
func Start(scenario Scenario, name, address, prefix string) {
	limit := runLimit
	if name == "restart" {
		limit = restartLimit
	}
	whole, cancel := context.WithCancel(context.Background())
	run := &Run{Address: address, Prefix: prefix, step: "start", context: whole, answers: bufio.NewScanner(os.Stdin)}
	time.AfterFunc(limit, func() {
		run.say("fail %s nothing came within %v", run.step, limit)
		os.Exit(1)
	})
	scenario(run)
	cancel()
	run.clean()
	run.say("done")
	os.Exit(0)
}

// Context lasts as long as the program, for what outlives a step: watches, renewals.
func (r *Run) Context() context.Context { return r.context }

// Link is the address of the same server over a link that the bench can cut.
func (r *Run) Link() string {
	link := os.Getenv("COMPAT_LINK")
	if link == "" {
		r.Fail("COMPAT_LINK is not set")
	}
	return link
}

// Step runs one step of the scenario's file; its checks end the program where they fail.
func (r *Run) Step(name string, check func(context.Context)) {
	r.step = name
	limited, cancel := context.WithTimeout(r.context, stepLimit)
	defer cancel()
	check(limited)
	r.say("ok %s", name)
}

// Lacks tells that the library has no call for the step.
func (r *Run) Lacks(name, reason string) { r.say("lacks %s %s", name, reason) }

// Note keeps something for the reader of the run.
func (r *Run) Note(format string, arguments ...any) { r.say("note "+format, arguments...) }

// Do asks the bench for a fault and returns when it is there.
func (r *Run) Do(verb string) {
	r.say("do %s", verb)
	if !r.answers.Scan() {
		r.Fail("the bench gave no answer to %s", verb)
	}
	if answer := strings.TrimSpace(r.answers.Text()); answer != "done" {
		r.Fail("the bench about %s: %s", verb, answer)
	}
}

// Cleanup has something done when the program ends, whether it passed or not; last come, first done.
func (r *Run) Cleanup(what func()) { r.cleanups = append(r.cleanups, what) }

// Fail ends the program: a client that goes on from a wrong state only confuses.
func (r *Run) Fail(format string, arguments ...any) {
	r.say("fail "+r.step+" "+"%s", fmt.Sprintf(format, arguments...))
	r.clean()
	os.Exit(1)
}

// Must fails the step when a call failed that should have passed.
func (r *Run) Must(what string, err error) {
	if err != nil {
		r.Fail("%s: %v", what, err)
	}
}

// That fails the step when something expected is not so.
func (r *Run) That(holds bool, format string, arguments ...any) {
	if !holds {
		r.Fail(format, arguments...)
	}
}

// Within asks until it holds or the limit has passed; the function tells what it saw last.
func (r *Run) Within(limit time.Duration, what string, look func() (holds bool, seen string)) {
	deadline := time.Now().Add(limit)
	for {
		holds, seen := look()
		if holds {
			return
		}
		if time.Now().After(deadline) {
			r.Fail("%s: not within %v, last seen %s", what, limit, seen)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Equal compares one value with the one expected.
func Equal[V any](r *Run, what string, got, want V) {
	if !reflect.DeepEqual(got, want) {
		r.Fail("%s: want %s, got %s", what, short(want), short(got))
	}
}

// Next takes a value out of a channel.
func Next[V any](r *Run, limit time.Duration, what string, from <-chan V) V {
	select {
	case value, open := <-from:
		if !open {
			r.Fail("%s: the channel was closed", what)
		}
		return value
	case <-time.After(limit):
		r.Fail("%s: nothing within %v", what, limit)
	}
	panic("unreachable")
}

// Silent checks that nothing comes out of a channel, and that it stays open: what was to be silent may not have ended.
func Silent[V any](r *Run, wait time.Duration, what string, from <-chan V) {
	select {
	case value, open := <-from:
		if !open {
			r.Fail("%s: the channel was closed", what)
		}
		r.Fail("%s: unexpected %s", what, short(value))
	case <-time.After(wait):
	}
}

func short(value any) string {
	text := fmt.Sprintf("%+v", value)
	if bytes, is := value.([]byte); is {
		text = fmt.Sprintf("%d bytes %q", len(bytes), bytes[:min(len(bytes), 100)])
	}
	return text
}

func (r *Run) say(format string, arguments ...any) {
	line := strings.Join(strings.Fields(fmt.Sprintf(format, arguments...)), " ")
	if len(line) > reasonLimit {
		line = strings.ToValidUTF8(line[:reasonLimit], "") + "…"
	}
	r.output.Lock()
	defer r.output.Unlock()
	fmt.Println(line)
}

func (r *Run) clean() {
	for at := len(r.cleanups) - 1; at >= 0; at-- {
		cleaned := make(chan struct{})
		go func() {
			defer close(cleaned)
			r.cleanups[at]()
		}()
		select {
		case <-cleaned:
		case <-time.After(3 * time.Second):
		}
	}
	r.cleanups = nil
}
