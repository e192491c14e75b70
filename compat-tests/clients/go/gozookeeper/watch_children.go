package gozookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["watch-children"] = watchChildren }

func watchChildren(r *support.Run) {
	a, b := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	node := r.Prefix + "/node"
	const limit = 5 * time.Second
	b.root(r)
	b.create(r, node, "", 0)

	r.Step("created", func(context.Context) {
		names, watch := a.childrenW(r, node)
		support.Equal(r, "children", names, []string{})
		b.create(r, node+"/child", "", 0)
		watch.fired(r, limit, zk.EventNodeChildrenChanged)
	})
	r.Step("deleted", func(context.Context) {
		names, watch := a.childrenW(r, node)
		support.Equal(r, "children", names, []string{"child"})
		b.remove(r, node+"/child")
		watch.fired(r, limit, zk.EventNodeChildrenChanged)
	})
	r.Step("data-silent", func(context.Context) {
		b.create(r, node+"/child", "", 0)
		_, watch := a.childrenW(r, node)
		b.set(r, node+"/child", "1")
		b.set(r, node, "1")
		watch.silent(r)
	})
	r.Step("grandchild-silent", func(context.Context) {
		_, watch := a.childrenW(r, node)
		b.create(r, node+"/child/grandchild", "", 0)
		watch.silent(r)
		b.remove(r, node+"/child/grandchild")
	})
	r.Step("parent-deleted", func(context.Context) {
		alone := r.Prefix + "/alone"
		b.create(r, alone, "", 0)
		_, watch := a.childrenW(r, alone)
		b.remove(r, alone)
		watch.fired(r, limit, zk.EventNodeDeleted)
	})
	r.Step("ephemeral", func(context.Context) {
		shortly := connect(r, r.Address, ordinary)
		below := r.Prefix + "/below"
		b.create(r, below, "", 0)
		shortly.create(r, below+"/ephemeral", "", zk.FlagEphemeral)
		_, watch := a.childrenW(r, below)
		shortly.Close()
		watch.fired(r, 2*time.Second, zk.EventNodeChildrenChanged)
		support.Equal(r, "children", a.children(r, below), []string{})
		b.remove(r, below)
	})
	r.Step("follow", func(context.Context) {
		followed := r.Prefix + "/followed"
		b.create(r, followed, "", 0)
		want := []string{}
		for number := range 20 {
			want = append(want, fmt.Sprintf("child-%02d", number))
		}
		names, watch := a.childrenW(r, followed)
		made := make(chan error, 1)
		go func() {
			for _, name := range want {
				if _, err := b.Create(followed+"/"+name, nil, 0, open); err != nil {
					made <- err
					return
				}
			}
			made <- nil
		}()
		for len(names) < len(want) {
			event := support.Next(r, limit, fmt.Sprintf("event after %d children", len(names)), watch.events)
			r.Must("watch", event.Err)
			support.Equal(r, "event", event.Type, zk.EventNodeChildrenChanged)
			before := len(names)
			names, watch = a.childrenW(r, followed)
			r.That(len(names) > before, "after an event the list has %d, as before", len(names))
		}
		support.Equal(r, "children", names, want)
		r.Must("create by B", <-made)
		for _, name := range want {
			b.remove(r, followed+"/"+name)
		}
		for _, path := range []string{followed, node + "/child", node, r.Prefix} {
			b.remove(r, path)
		}
	})
}
