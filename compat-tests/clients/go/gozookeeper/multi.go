package gozookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["multi"] = multi }

func multi(r *support.Run) {
	a, b := connect(r, r.Address, ordinary), connect(r, r.Address, ordinary)
	p, x := r.Prefix+"/p", r.Prefix+"/x"
	create := func(path string, flags int32) *zk.CreateRequest {
		return &zk.CreateRequest{Path: path, Data: []byte("1"), Acl: open, Flags: flags}
	}
	set := func(path string, version int32) *zk.SetDataRequest {
		return &zk.SetDataRequest{Path: path, Data: []byte("2"), Version: version}
	}
	passes := func(operations ...any) []zk.MultiResponse {
		results, err := a.Multi(operations...)
		r.Must("transaction", err)
		support.Equal(r, "results", len(results), len(operations))
		for at, result := range results {
			r.Must(fmt.Sprint("operation ", at), result.Error)
		}
		return results
	}
	// The library gives the first error as that of the whole, and the results one by one.
	fails := func(want error, each []error, operations ...any) {
		results, err := a.Multi(operations...)
		refused(r, "transaction", err, want)
		seen := []string{}
		for _, result := range results {
			seen = append(seen, fmt.Sprint(result.Error))
		}
		support.Equal(r, "results", fmt.Sprint(seen), fmt.Sprint(each))
	}
	a.root(r)

	r.Step("all", func(context.Context) {
		results := passes(create(p, 0), create(p+"/c", 0), set(p+"/c", 0), &zk.CheckVersionRequest{Path: p + "/c", Version: 1},
			&zk.DeleteRequest{Path: p + "/c", Version: 1})
		support.Equal(r, "first path", results[0].String, p)
		support.Equal(r, "second path", results[1].String, p+"/c")
		r.That(results[2].Stat != nil && results[2].Stat.Version == 1, "the set gave %+v", results[2])
		r.That(results[3].Stat == nil && results[3].String == "", "the check gave %+v", results[3])
		r.That(results[4].Stat == nil && results[4].String == "", "the delete gave %+v", results[4])
		support.Equal(r, "children", a.children(r, r.Prefix), []string{"p"})
		support.Equal(r, "children of P", a.children(r, p), []string{})
	})
	r.Step("one-zxid", func(context.Context) {
		passes(create(r.Prefix+"/one", 0), create(r.Prefix+"/two", 0))
		one, two := a.exists(r, r.Prefix+"/one"), a.exists(r, r.Prefix+"/two")
		r.That(one != nil && two != nil, "the nodes are not there")
		support.Equal(r, "czxid", two.Czxid, one.Czxid)
	})
	// Operations before the one that failed were rolled back and carry no error of their own; those after it were not
	// tried (DataTree.processTxn).
	notTried := errors.New("unknown error: -2")
	r.Step("none", func(context.Context) {
		fails(zk.ErrNodeExists, []error{nil, zk.ErrNodeExists}, create(x, 0), create(p, 0))
		r.That(a.exists(r, x) == nil, "X is there")
	})
	r.Step("which", func(context.Context) {
		fails(zk.ErrNoNode, []error{nil, zk.ErrNoNode, notTried, notTried}, set(p, -1), set(x, -1), create(p, 0), create(x, 0))
		_, stat := a.get(r, p)
		support.Equal(r, "version", stat.Version, 0)
		r.That(a.exists(r, x) == nil, "X is there")
	})
	r.Step("check-fails", func(context.Context) {
		fails(zk.ErrBadVersion, []error{zk.ErrBadVersion, notTried}, &zk.CheckVersionRequest{Path: p, Version: 9}, create(x, 0))
		r.That(a.exists(r, x) == nil, "X is there")
	})
	r.Step("order", func(context.Context) {
		results := passes(create(r.Prefix+"/y", 0), set(r.Prefix+"/y", 0), set(r.Prefix+"/y", 1))
		support.Equal(r, "version after the last", results[2].Stat.Version, 2)
		support.Equal(r, "version", a.exists(r, r.Prefix+"/y").Version, 2)
	})
	r.Step("sequential", func(context.Context) {
		results := passes(create(p+"/n-", zk.FlagSequence), create(p+"/n-", zk.FlagSequence))
		var first, second int
		for result, number := range map[string]*int{results[0].String: &first, results[1].String: &second} {
			_, err := fmt.Sscanf(result, p+"/n-%010d", number)
			r.Must("number of "+result, err)
		}
		support.Equal(r, "second number", second, first+1)
		support.Equal(r, "paths", []string{results[0].String, results[1].String},
			[]string{fmt.Sprintf("%s/n-%010d", p, first), fmt.Sprintf("%s/n-%010d", p, second)})
		passes(&zk.DeleteRequest{Path: results[0].String, Version: -1}, &zk.DeleteRequest{Path: results[1].String, Version: -1})
	})
	r.Step("silent", func(context.Context) {
		_, watch := b.childrenW(r, r.Prefix)
		fails(zk.ErrNodeExists, []error{nil, zk.ErrNodeExists}, create(x, 0), create(p, 0))
		watch.silent(r)
		passes(create(x, 0), create(x+"2", 0))
		watch.fired(r, 5*time.Second, zk.EventNodeChildrenChanged)
		for _, name := range a.children(r, r.Prefix) {
			a.remove(r, r.Prefix+"/"+name)
		}
		a.remove(r, r.Prefix)
	})
}
