package gozookeeper

import (
	"context"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["acl"] = acl }

func acl(r *support.Run) {
	a, b, c := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	public, own := r.Prefix+"/public", r.Prefix+"/own"
	list := func(of *client, path string) ([]zk.ACL, int32) {
		entries, stat, err := of.GetACL(path)
		r.Must("get the list of "+path, err)
		return entries, stat.Aversion
	}

	r.Step("open", func(context.Context) {
		a.root(r)
		a.create(r, public, "", 0)
		entries, version := list(a, public)
		support.Equal(r, "list", entries, []zk.ACL{{Perms: zk.PermAll, Scheme: "world", ID: "anyone"}})
		support.Equal(r, "aversion", version, 0)
	})
	r.Step("digest", func(context.Context) {
		r.Must("add the identity", a.AddAuth("digest", []byte("user:secret")))
		_, err := a.Create(own, []byte("1"), 0, zk.AuthACL(zk.PermAll))
		r.Must("create", err)
	})
	r.Step("shown", func(context.Context) {
		entries, version := list(a, own)
		support.Equal(r, "list", entries, zk.DigestACL(zk.PermAll, "user", "secret"))
		support.Equal(r, "aversion", version, 0)
	})
	r.Step("own", func(context.Context) {
		a.set(r, own, "2")
		value, _ := a.get(r, own)
		support.Equal(r, "value", value, "2")
	})
	r.Step("stranger", func(context.Context) {
		_, _, err := b.Get(own)
		refused(r, "get", err, zk.ErrNoAuth)
		_, err = b.Set(own, []byte("b"), -1)
		refused(r, "set", err, zk.ErrNoAuth)
	})
	r.Step("admitted", func(context.Context) {
		r.Must("add the identity", b.AddAuth("digest", []byte("user:secret")))
		value, _ := b.get(r, own)
		support.Equal(r, "value", value, "2")
	})
	r.Step("changed", func(context.Context) {
		stat, err := a.SetACL(own, zk.WorldACL(zk.PermRead), 0)
		r.Must("set the list", err)
		support.Equal(r, "aversion", stat.Aversion, 1)
		entries, version := list(a, own)
		support.Equal(r, "list", entries, zk.WorldACL(zk.PermRead))
		support.Equal(r, "aversion of get", version, 1)
		value, _ := c.get(r, own)
		support.Equal(r, "value", value, "2")
		_, err = c.Set(own, []byte("c"), -1)
		refused(r, "set by the third", err, zk.ErrNoAuth)
	})
	r.Step("bad-version", func(context.Context) {
		// Nobody may administer the other node any more, and that is looked at first.
		_, err := a.SetACL(own, open, 7)
		refused(r, "set of a list that nobody may set", err, zk.ErrNoAuth)
		_, err = a.SetACL(public, open, 7)
		refused(r, "set the list", err, zk.ErrBadVersion)
		_, version := list(a, public)
		support.Equal(r, "aversion", version, 0)
		for _, path := range []string{own, public, r.Prefix} {
			a.remove(r, path)
		}
	})
}
