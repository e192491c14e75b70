package gozookeeper

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["restart"] = restart }

func restart(r *support.Run) {
	a, b := connectBy(r, r.Address, 20*time.Second, dial), connectBy(r, r.Address, 20*time.Second, dial)
	sessions := [2]int64{a.SessionID(), b.SessionID()}
	node, general, numbered := r.Prefix+"/ephemeral", r.Prefix+"/general", r.Prefix+"/n-"
	var before *zk.Stat
	var last *zk.Stat
	var number int
	var watch armed

	r.Step("before", func(context.Context) {
		a.root(r)
		a.create(r, node, "mine", zk.FlagEphemeral)
		before = a.exists(r, node)
		b.create(r, general, "1", 0)
		sequential := a.create(r, numbered, "numbered", zk.FlagSequence)
		_, err := fmt.Sscanf(sequential, numbered+"%010d", &number)
		r.Must("number of "+sequential, err)
		last = a.exists(r, sequential)
		_, watch = a.getW(r, general)
	})
	r.Step("down", func(context.Context) {
		r.Do("restart")
		until := time.Now().Add(15 * time.Second)
		for at, one := range []*client{a, b} {
			r.Within(time.Until(until), "a call after the restart", func() (bool, string) {
				_, _, err := one.Exists(r.Prefix)
				return err == nil, fmt.Sprint(err)
			})
			support.Equal(r, "session id", one.SessionID(), sessions[at])
			support.Equal(r, "expired meanwhile", one.sawState(zk.StateExpired), false)
			support.Equal(r, "disconnected meanwhile", one.sawState(zk.StateDisconnected), true)
		}
	})
	r.Step("stays", func(context.Context) {
		value, stat := b.get(r, node)
		support.Equal(r, "value", value, "mine")
		support.Equal(r, "stat", *stat, *before)
		value, _ = b.get(r, general)
		support.Equal(r, "general value", value, "1")
		value, stat = b.get(r, fmt.Sprintf("%s%010d", numbered, number))
		support.Equal(r, "sequential value", value, "numbered")
		support.Equal(r, "sequential stat", *stat, *last)
	})
	r.Step("watch", func(context.Context) {
		b.set(r, general, "2")
		watch.fired(r, 5*time.Second, zk.EventNodeDataChanged)
	})
	r.Step("numbers", func(context.Context) {
		next := a.create(r, numbered, "", zk.FlagSequence)
		support.Equal(r, "path", next, fmt.Sprintf("%s%010d", numbered, number+1))
		stat := a.exists(r, next)
		r.That(stat.Czxid > last.Czxid, "czxid %d after %d", stat.Czxid, last.Czxid)
		a.remove(r, next)
	})
	r.Step("ends", func(context.Context) {
		a.Close()
		r.Within(2*time.Second, "the ephemeral node is gone", func() (bool, string) { return b.exists(r, node) == nil, "the node" })
		for _, path := range []string{fmt.Sprintf("%s%010d", numbered, number), general, r.Prefix} {
			b.remove(r, path)
		}
	})
}

// impatient waits four seconds at most for the session, where the library waits for more than six times the session's
// timeout: a ZooKeeper that is just starting leaves a connection neither answered nor closed (NIOServerCnxn.close fails
// while ZKDatabase is not there).
type impatient struct {
	net.Conn
	asked bool
}

func dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &impatient{Conn: conn}, nil
}

// SetReadDeadline is first called before the reply that grants the session.
func (i *impatient) SetReadDeadline(deadline time.Time) error {
	if !i.asked {
		i.asked = true
		deadline = time.Now().Add(4 * time.Second)
	}
	return i.Conn.SetReadDeadline(deadline)
}
