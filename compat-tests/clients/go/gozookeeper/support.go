// Package gozookeeper is the bench's scenarios for github.com/go-zookeeper/zk, a file each.
package gozookeeper

import (
	"fmt"
	"net"
	"path"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

// Scenarios by name; each file puts its own in.
var Scenarios = map[string]support.Scenario{}

var open = zk.WorldACL(zk.PermAll)

const ordinary = 10 * time.Second

// client is a connection with a record of everything that it was told.
type client struct {
	*zk.Conn
	mutex  sync.Mutex
	events []zk.Event
	log    []string
}

// connect waits until the session is there.
func connect(r *support.Run, address string, timeout time.Duration) *client {
	return connectBy(r, address, timeout, net.DialTimeout)
}

func connectBy(r *support.Run, address string, timeout time.Duration, dialer zk.Dialer) *client {
	c := &client{}
	conn, _, err := zk.Connect(strings.Split(address, ","), timeout, zk.WithLogger(c), zk.WithEventCallback(c.told), zk.WithDialer(dialer))
	r.Must("connect", err)
	c.Conn = conn
	r.Cleanup(conn.Close)
	c.connected(r, 10*time.Second)
	return c
}

func (c *client) connected(r *support.Run, limit time.Duration) {
	r.Within(limit, "a session", func() (bool, string) { return c.State() == zk.StateHasSession, c.State().String() })
}

// Printf takes the library's log, the only place where it tells the negotiated timeout.
func (c *client) Printf(format string, arguments ...any) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.log = append(c.log, fmt.Sprintf(format, arguments...))
}

func (c *client) told(event zk.Event) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.events = append(c.events, event)
}

var authenticated = regexp.MustCompile(`^authenticated: id=\d+, timeout=(\d+)$`)

// negotiated is the session's timeout in milliseconds.
func (c *client) negotiated(r *support.Run) int {
	found := 0
	r.Within(2*time.Second, "the negotiated timeout in the library's log", func() (bool, string) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		for _, line := range c.log {
			if match := authenticated.FindStringSubmatch(line); match != nil {
				found, _ = strconv.Atoi(match[1])
			}
		}
		return found != 0, strings.Join(c.log, "; ")
	})
	return found
}

// events that came over the wire for a path, in their order.
func (c *client) eventsOf(path string) []zk.EventType {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	types := []zk.EventType{}
	for _, event := range c.events {
		if event.Type > 0 && event.Path == path {
			types = append(types, event.Type)
		}
	}
	return types
}

// sawState tells whether the session was ever in this state.
func (c *client) sawState(state zk.State) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, event := range c.events {
		if event.Type == zk.EventSession && event.State == state {
			return true
		}
	}
	return false
}

// armed is a watch that was set, and how much its client had been told of the path before.
type armed struct {
	client *client
	path   string
	events <-chan zk.Event
	before int
}

// fired expects the watch's one event, and that the wire has brought it once.
func (a armed) fired(r *support.Run, limit time.Duration, want zk.EventType) {
	event := support.Next(r, limit, "watch on "+a.path, a.events)
	r.Must("watch on "+a.path, event.Err)
	support.Equal(r, "event", event.Type.String()+" "+event.Path, want.String()+" "+a.path)
	support.Silent(r, 300*time.Millisecond, "watch on "+a.path+" after its event", drained(a.events))
	support.Equal(r, "events of "+a.path+" on the wire", a.client.eventsOf(a.path)[a.before:], []zk.EventType{want})
}

// silent checks for a second that the watch gives nothing, and the wire nothing for its path.
func (a armed) silent(r *support.Run) {
	support.Silent(r, time.Second, "watch on "+a.path, a.events)
	support.Equal(r, "events of "+a.path+" on the wire", a.client.eventsOf(a.path)[a.before:], []zk.EventType{})
}

// drained passes on what a channel still gives, and stays open when the channel is closed, so that a wait lasts.
func drained(from <-chan zk.Event) <-chan zk.Event {
	rest := make(chan zk.Event)
	go func() {
		for event := range from {
			rest <- event
		}
	}()
	return rest
}

// parents makes the persistent nodes above a path.
func (c *client) parents(r *support.Run, whole string) {
	above := path.Dir(whole)
	if above == "/" {
		return
	}
	c.parents(r, above)
	if _, err := c.Create(above, nil, 0, open); err != nil && err != zk.ErrNodeExists {
		r.Fail("create %s: %v", above, err)
	}
}

// root makes the scenario's own node.
func (c *client) root(r *support.Run) {
	c.parents(r, r.Prefix)
	c.create(r, r.Prefix, "", 0)
}

func (c *client) create(r *support.Run, path, value string, flags int32) string {
	made, err := c.Create(path, []byte(value), flags, open)
	r.Must("create "+path, err)
	if flags&zk.FlagSequence == 0 {
		support.Equal(r, "path of create", made, path)
	}
	return made
}

func (c *client) get(r *support.Run, path string) (string, *zk.Stat) {
	value, stat, err := c.Get(path)
	r.Must("get "+path, err)
	return string(value), stat
}

func (c *client) getW(r *support.Run, path string) (string, armed) {
	before := len(c.eventsOf(path))
	value, _, events, err := c.GetW(path)
	r.Must("get "+path+" with a watch", err)
	return string(value), armed{c, path, events, before}
}

func (c *client) existsW(r *support.Run, path string, want bool) armed {
	before := len(c.eventsOf(path))
	there, _, events, err := c.ExistsW(path)
	r.Must("exists "+path+" with a watch", err)
	support.Equal(r, "exists "+path, there, want)
	return armed{c, path, events, before}
}

func (c *client) childrenW(r *support.Run, path string) ([]string, armed) {
	before := len(c.eventsOf(path))
	names, _, events, err := c.ChildrenW(path)
	r.Must("children of "+path+" with a watch", err)
	sort.Strings(names)
	return names, armed{c, path, events, before}
}

func (c *client) children(r *support.Run, path string) []string {
	names, _, err := c.Children(path)
	r.Must("children of "+path, err)
	sort.Strings(names)
	return names
}

func (c *client) set(r *support.Run, path, value string) *zk.Stat {
	stat, err := c.Set(path, []byte(value), -1)
	r.Must("set "+path, err)
	return stat
}

func (c *client) remove(r *support.Run, path string) { r.Must("delete "+path, c.Delete(path, -1)) }

// exists gives nil for a path without a node.
func (c *client) exists(r *support.Run, path string) *zk.Stat {
	there, stat, err := c.Exists(path)
	r.Must("exists "+path, err)
	if !there {
		return nil
	}
	return stat
}

func refused(r *support.Run, what string, err, want error) {
	r.That(err == want, "%s: want %q, got %v", what, want, err)
}
