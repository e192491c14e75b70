package gozookeeper

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["reattach"] = reattach }

func reattach(r *support.Run) {
	a, b := connect(r, r.Link(), ordinary), connect(r, r.Address, ordinary)
	w, p, node := r.Prefix+"/w", r.Prefix+"/p", r.Prefix+"/ephemeral"
	session := a.SessionID()
	var before *zk.Stat
	var data, children armed

	r.Step("created", func(context.Context) {
		b.root(r)
		b.create(r, w, "1", 0)
		b.create(r, p, "", 0)
		a.create(r, node, "", zk.FlagEphemeral)
		before = b.exists(r, node)
		r.That(before != nil, "B does not see A's node")
		support.Equal(r, "owner", before.EphemeralOwner, session)
		_, data = a.getW(r, w)
		_, children = a.childrenW(r, p)
	})
	r.Step("away", func(context.Context) {
		r.Do("cut")
		b.set(r, w, "2")
		b.create(r, p+"/child", "", 0)
		time.Sleep(2 * time.Second)
		support.Equal(r, "events of W while cut off", len(a.eventsOf(w)), 0)
		r.Do("mend")
	})
	r.Step("same", func(context.Context) {
		a.connected(r, 8*time.Second)
		support.Equal(r, "session id", a.SessionID(), session)
		support.Equal(r, "expired meanwhile", a.sawState(zk.StateExpired), false)
	})
	r.Step("stays", func(context.Context) {
		stat := b.exists(r, node)
		r.That(stat != nil, "the ephemeral node is gone")
		support.Equal(r, "czxid", stat.Czxid, before.Czxid)
		support.Equal(r, "owner", stat.EphemeralOwner, session)
	})
	r.Step("data-watch", func(context.Context) { data.fired(r, 5*time.Second, zk.EventNodeDataChanged) })
	r.Step("child-watch", func(context.Context) { children.fired(r, 5*time.Second, zk.EventNodeChildrenChanged) })
	r.Step("works", func(context.Context) {
		a.set(r, w, "3")
		value, stat := a.get(r, w)
		support.Equal(r, "value", value, "3")
		support.Equal(r, "version", stat.Version, 2)
		a.remove(r, node)
		for _, path := range []string{p + "/child", p, w, r.Prefix} {
			b.remove(r, path)
		}
	})
}
