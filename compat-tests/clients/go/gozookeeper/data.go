package gozookeeper

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["data"] = data }

func data(r *support.Run) {
	a, b := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	node := r.Prefix + "/node"
	parent := r.Prefix + "/parent"
	var every [256]byte
	for at := range every {
		every[at] = byte(at)
	}
	var fresh, changed, crowded *zk.Stat
	statOf := func(path string) *zk.Stat {
		stat := a.exists(r, path)
		r.That(stat != nil, "%s is not there", path)
		return stat
	}

	r.Step("create", func(context.Context) {
		a.root(r)
		a.create(r, node, string(every[:]), 0)
	})
	r.Step("get", func(context.Context) {
		value, stat := a.get(r, node)
		support.Equal(r, "value", []byte(value), every[:])
		r.That(stat.Czxid > 0, "czxid is %d", stat.Czxid)
		made := time.UnixMilli(stat.Ctime)
		r.That(time.Since(made).Abs() < time.Minute, "ctime is %v", made)
		support.Equal(r, "stat", *stat, zk.Stat{Czxid: stat.Czxid, Mzxid: stat.Czxid, Pzxid: stat.Czxid,
			Ctime: stat.Ctime, Mtime: stat.Ctime, DataLength: 256})
		fresh = stat
	})
	r.Step("set", func(context.Context) {
		value := bytes.Repeat([]byte("x"), 256)
		stat, err := a.Set(node, value, 0)
		r.Must("set", err)
		r.That(stat.Mzxid > stat.Czxid, "mzxid is %d, czxid %d", stat.Mzxid, stat.Czxid)
		r.That(stat.Mtime >= stat.Ctime, "mtime is %d, ctime %d", stat.Mtime, stat.Ctime)
		expected := *fresh
		expected.Version, expected.Mzxid, expected.Mtime = 1, stat.Mzxid, stat.Mtime
		support.Equal(r, "stat", *stat, expected)
		again, seen := a.get(r, node)
		support.Equal(r, "value", []byte(again), value)
		support.Equal(r, "stat of get", *seen, *stat)
		changed = stat
	})
	r.Step("bad-version", func(context.Context) {
		_, err := a.Set(node, []byte("no"), 7)
		refused(r, "set", err, zk.ErrBadVersion)
		refused(r, "delete", a.Delete(node, 7), zk.ErrBadVersion)
		value, stat := a.get(r, node)
		support.Equal(r, "value", value, string(bytes.Repeat([]byte("x"), 256)))
		support.Equal(r, "stat", *stat, *changed)
	})
	r.Step("any-version", func(context.Context) { support.Equal(r, "version", a.set(r, node, "any").Version, 2) })
	r.Step("exists", func(context.Context) {
		_, stat := a.get(r, node)
		support.Equal(r, "stat", *statOf(node), *stat)
		r.That(a.exists(r, r.Prefix+"/missing") == nil, "a missing node exists")
	})
	r.Step("no-node", func(context.Context) {
		missing := r.Prefix + "/missing"
		_, _, err := a.Get(missing)
		refused(r, "get", err, zk.ErrNoNode)
		_, err = a.Set(missing, nil, -1)
		refused(r, "set", err, zk.ErrNoNode)
		refused(r, "delete", a.Delete(missing, -1), zk.ErrNoNode)
		_, _, err = a.Children(missing)
		refused(r, "children", err, zk.ErrNoNode)
		_, err = a.Create(missing+"/child", nil, 0, open)
		refused(r, "create", err, zk.ErrNoNode)
	})
	r.Step("node-exists", func(context.Context) {
		_, err := a.Create(node, nil, 0, open)
		refused(r, "create", err, zk.ErrNodeExists)
	})
	r.Step("empty-data", func(context.Context) {
		a.create(r, r.Prefix+"/empty", "", 0)
		value, stat := a.get(r, r.Prefix+"/empty")
		support.Equal(r, "value", value, "")
		support.Equal(r, "data length", stat.DataLength, 0)
	})
	r.Step("large-data", func(context.Context) {
		large := bytes.Repeat([]byte("0123456789"), 100_000)
		a.create(r, r.Prefix+"/large", "", 0)
		support.Equal(r, "data length", a.set(r, r.Prefix+"/large", string(large)).DataLength, 1_000_000)
		value, _ := a.get(r, r.Prefix+"/large")
		r.That(value == string(large), "the large value came back with %d bytes", len(value))
	})
	r.Step("children", func(context.Context) {
		a.create(r, parent, "", 0)
		for _, name := range []string{"c", "a", "b"} {
			a.create(r, parent+"/"+name, name, 0)
		}
		support.Equal(r, "children", a.children(r, parent), []string{"a", "b", "c"})
		crowded = statOf(parent)
		support.Equal(r, "number of children", crowded.NumChildren, 3)
		support.Equal(r, "cversion", crowded.Cversion, 3)
		support.Equal(r, "pzxid", crowded.Pzxid, statOf(parent+"/b").Czxid)
	})
	r.Step("child-deleted", func(context.Context) {
		a.remove(r, parent+"/c")
		stat := statOf(parent)
		r.That(stat.Pzxid > crowded.Pzxid, "pzxid is %d, was %d", stat.Pzxid, crowded.Pzxid)
		expected := *crowded
		expected.NumChildren, expected.Cversion, expected.Pzxid = 2, 4, stat.Pzxid
		support.Equal(r, "stat", *stat, expected)
		crowded = stat
	})
	r.Step("child-changed", func(context.Context) {
		a.set(r, parent+"/a", "changed")
		support.Equal(r, "stat", *statOf(parent), *crowded)
	})
	r.Step("not-empty", func(context.Context) { refused(r, "delete", a.Delete(parent, -1), zk.ErrNotEmpty) })

	numbered := r.Prefix + "/numbered"
	number := func(prefix string, want int) {
		made := a.create(r, numbered+"/"+prefix, "", zk.FlagSequence)
		support.Equal(r, "path", made, fmt.Sprintf("%s/%s%010d", numbered, prefix, want))
	}
	r.Step("sequential", func(context.Context) {
		a.create(r, numbered, "", 0)
		number("one-", 0)
		number("one-", 1)
		number("two-", 2)
	})
	r.Step("sequential-after", func(context.Context) {
		a.remove(r, numbered+"/two-0000000002")
		number("one-", 3)
	})
	ephemeral := r.Prefix + "/ephemeral"
	r.Step("ephemeral", func(context.Context) {
		a.create(r, ephemeral, "", zk.FlagEphemeral)
		support.Equal(r, "owner", statOf(ephemeral).EphemeralOwner, a.SessionID())
	})
	r.Step("no-children", func(context.Context) {
		_, err := a.Create(ephemeral+"/child", nil, 0, open)
		refused(r, "create", err, zk.ErrNoChildrenForEphemerals)
	})
	r.Step("bad-path", func(context.Context) {
		session := a.SessionID()
		for _, path := range []string{r.Prefix + "//b", r.Prefix + "/../b"} {
			_, err := a.Create(path, nil, 0, open)
			refused(r, "create of "+path, err, zk.ErrInvalidPath)
			_, _, err = a.Get(path)
			refused(r, "get of "+path, err, zk.ErrInvalidPath)
		}
		statOf(node)
		support.Equal(r, "session id", a.SessionID(), session)
	})
	r.Step("sync", func(context.Context) {
		b.set(r, node, "by B")
		_, err := a.Sync(node)
		r.Must("sync", err)
		value, _ := a.get(r, node)
		support.Equal(r, "value", value, "by B")
	})
	r.Step("delete", func(context.Context) {
		for _, path := range []string{node, r.Prefix + "/empty", r.Prefix + "/large", parent + "/a", parent + "/b", parent, ephemeral} {
			a.remove(r, path)
		}
		for _, name := range a.children(r, numbered) {
			a.remove(r, numbered+"/"+name)
		}
		a.remove(r, numbered)
		a.remove(r, r.Prefix)
		r.That(a.exists(r, r.Prefix) == nil, "the root is there")
	})
}
