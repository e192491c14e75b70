package gozookeeper

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["watch-exists"] = watchExists }

func watchExists(r *support.Run) {
	a, b := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	node := r.Prefix + "/node"
	const limit = 5 * time.Second
	b.root(r)

	r.Step("created", func(context.Context) {
		watch := a.existsW(r, node, false)
		b.create(r, node, "", 0)
		watch.fired(r, limit, zk.EventNodeCreated)
	})
	r.Step("changed", func(context.Context) {
		watch := a.existsW(r, node, true)
		b.set(r, node, "1")
		watch.fired(r, limit, zk.EventNodeDataChanged)
	})
	r.Step("deleted", func(context.Context) {
		watch := a.existsW(r, node, true)
		b.remove(r, node)
		watch.fired(r, limit, zk.EventNodeDeleted)
	})
	r.Step("children-silent", func(context.Context) {
		b.create(r, node, "", 0)
		watch := a.existsW(r, node, true)
		b.create(r, node+"/child", "", 0)
		watch.silent(r)
		for _, path := range []string{node + "/child", node, r.Prefix} {
			b.remove(r, path)
		}
	})
}
