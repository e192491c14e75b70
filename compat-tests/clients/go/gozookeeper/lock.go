package gozookeeper

import (
	"context"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["lock"] = lock }

func lock(r *support.Run) {
	a, b := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	path, counter := r.Prefix+"/lock", r.Prefix+"/counter"
	a.root(r)
	first, second := zk.NewLock(a.Conn, path, open), zk.NewLock(b.Conn, path, open)
	held := make(chan error, 1)

	r.Step("acquire", func(context.Context) { r.Must("lock", first.Lock()) })
	r.Step("refused", func(context.Context) {
		// The library's lock knows no limit: this call goes on to wait for the next step.
		go func() { held <- second.Lock() }()
		support.Silent(r, 500*time.Millisecond, "lock of B", held)
	})
	r.Step("passed", func(context.Context) {
		r.Must("unlock", first.Unlock())
		r.Must("lock of B", support.Next(r, 2*time.Second, "lock of B", held))
	})
	r.Step("died", func(context.Context) {
		go func() { held <- first.Lock() }()
		support.Silent(r, 300*time.Millisecond, "lock of A", held)
		b.Close()
		r.Must("lock of A", support.Next(r, 2*time.Second, "lock of A", held))
		r.Must("unlock", first.Unlock())
	})
	r.Step("counter", func(context.Context) {
		a.create(r, counter, "0", 0)
		finished := make(chan error, 3)
		for range 3 {
			own := connect(r, r.Address, ordinary)
			go func() { finished <- count(own.Conn, path, counter) }()
		}
		for range 3 {
			r.Must("a counting client", support.Next(r, 20*time.Second, "a counting client", finished))
		}
		value, _ := a.get(r, counter)
		support.Equal(r, "counter", value, "30")
	})
	r.Step("clean", func(context.Context) {
		support.Equal(r, "children of the lock", a.children(r, path), []string{})
		for _, path := range []string{path, counter, r.Prefix} {
			a.remove(r, path)
		}
	})
}

// count adds one to the counter, ten times, each under the lock.
func count(conn *zk.Conn, path, counter string) error {
	lock := zk.NewLock(conn, path, open)
	for range 10 {
		if err := lock.Lock(); err != nil {
			return err
		}
		value, _, err := conn.Get(counter)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(value))
		if err != nil {
			return err
		}
		if _, err := conn.Set(counter, []byte(strconv.Itoa(number+1)), -1); err != nil {
			return err
		}
		if err := lock.Unlock(); err != nil {
			return err
		}
	}
	return nil
}
