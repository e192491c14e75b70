package gozookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["session-expiry"] = sessionExpiry }

func sessionExpiry(r *support.Run) {
	a, b := connect(r, r.Link(), 4*time.Second), connect(r, r.Address, ordinary)
	node := r.Prefix + "/ephemeral"
	session := a.SessionID()
	var watch armed
	var cut time.Time

	r.Step("created", func(context.Context) {
		b.root(r)
		a.create(r, node, "", zk.FlagEphemeral)
		stat := b.exists(r, node)
		r.That(stat != nil, "B does not see the node")
		support.Equal(r, "owner", stat.EphemeralOwner, session)
		watch = b.existsW(r, node, true)
	})
	r.Step("kept", func(context.Context) {
		r.Do("cut")
		cut = time.Now()
		time.Sleep(1500 * time.Millisecond)
		r.That(b.exists(r, node) != nil, "the node is gone 1.5 s after the cut")
	})
	r.Step("gone", func(context.Context) {
		event := support.Next(r, 9*time.Second-time.Since(cut), "B's watch on the node", watch.events)
		support.Equal(r, "event", event.Type, zk.EventNodeDeleted)
		r.That(time.Since(cut) > 2*time.Second, "the node went %v after the cut", time.Since(cut))
		r.That(b.exists(r, node) == nil, "the node is there after its event")
	})
	r.Step("told", func(context.Context) {
		r.Do("mend")
		r.Within(20*time.Second, "A is told that its session has expired", func() (bool, string) {
			return a.sawState(zk.StateExpired), a.State().String()
		})
	})
	r.Step("again", func(context.Context) {
		a.connected(r, 10*time.Second)
		r.That(a.SessionID() != 0 && a.SessionID() != session, "session was %d and is %d", session, a.SessionID())
		a.create(r, node, "", zk.FlagEphemeral)
		stat := b.exists(r, node)
		r.That(stat != nil, "B does not see the new node")
		support.Equal(r, "owner", fmt.Sprint(stat.EphemeralOwner), fmt.Sprint(a.SessionID()))
		a.remove(r, node)
		b.remove(r, r.Prefix)
	})
}
