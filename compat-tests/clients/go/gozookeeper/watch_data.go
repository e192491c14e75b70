package gozookeeper

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["watch-data"] = watchData }

func watchData(r *support.Run) {
	a, b := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	node := r.Prefix + "/node"
	const limit = 5 * time.Second
	b.root(r)
	b.create(r, node, "0", 0)

	r.Step("once", func(context.Context) {
		_, watch := a.getW(r, node)
		b.set(r, node, "1")
		b.set(r, node, "2")
		watch.fired(r, limit, zk.EventNodeDataChanged)
	})
	r.Step("before", func(context.Context) {
		_, watch := a.getW(r, node)
		changed := make(chan error, 1)
		go func() {
			time.Sleep(50 * time.Millisecond)
			_, err := b.Set(node, []byte("3"), -1)
			changed <- err
		}()
		r.Within(limit, "the change", func() (bool, string) {
			value, _ := a.get(r, node)
			if value == "3" {
				select {
				case event := <-watch.events:
					support.Equal(r, "event", event.Type, zk.EventNodeDataChanged)
				default:
					r.Fail("a get showed the change before the event was there")
				}
			}
			return value == "3", value
		})
		r.Must("set by B", <-changed)
	})
	r.Step("again", func(context.Context) {
		_, watch := a.getW(r, node)
		b.set(r, node, "4")
		watch.fired(r, limit, zk.EventNodeDataChanged)
		value, watch := a.getW(r, node)
		support.Equal(r, "value", value, "4")
		b.set(r, node, "5")
		watch.fired(r, limit, zk.EventNodeDataChanged)
	})
	r.Step("deleted", func(context.Context) {
		_, watch := a.getW(r, node)
		b.remove(r, node)
		watch.fired(r, limit, zk.EventNodeDeleted)
		b.create(r, node, "0", 0)
	})
	r.Step("both", func(context.Context) {
		_, first := a.getW(r, node)
		_, second := a.getW(r, node)
		b.set(r, node, "1")
		first.fired(r, limit, zk.EventNodeDataChanged)
		second.fired(r, limit, zk.EventNodeDataChanged)
	})
	r.Step("none", func(context.Context) {
		missing := r.Prefix + "/missing"
		_, _, events, err := a.GetW(missing)
		refused(r, "get", err, zk.ErrNoNode)
		b.create(r, missing, "", 0)
		if events == nil {
			events = make(chan zk.Event)
		}
		armed{a, missing, events, 0}.silent(r)
		b.remove(r, missing)
	})
	r.Step("own", func(context.Context) {
		_, watch := a.getW(r, node)
		a.set(r, node, "2")
		watch.fired(r, limit, zk.EventNodeDataChanged)
		b.remove(r, node)
		b.remove(r, r.Prefix)
	})
}
