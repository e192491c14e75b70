package gozookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["container-ttl"] = containerTTL }

func containerTTL(r *support.Run) {
	c := connect(r, r.Address, ordinary)
	const life = 1500 * time.Millisecond
	container := r.Prefix + "/container"
	gone := func(limit time.Duration, path string) {
		r.Within(limit, path+" is gone", func() (bool, string) { return c.exists(r, path) == nil, "the node" })
	}
	makeContainer := func(path string) {
		made, err := c.CreateContainer(path, []byte("1"), zk.FlagContainer, open)
		r.Must("create container "+path, err)
		support.Equal(r, "path", made, path)
	}
	makeTTL := func(path string, flag int32) string {
		made, err := c.CreateTTL(path, []byte("1"), flag, open, life)
		r.Must("create with time to live "+path, err)
		return made
	}
	c.root(r)

	r.Step("container", func(context.Context) {
		makeContainer(container)
		c.create(r, container+"/child", "", 0)
		value, _ := c.get(r, container)
		support.Equal(r, "value", value, "1")
		support.Equal(r, "version", c.set(r, container, "2").Version, 1)
		value, stat := c.get(r, container)
		support.Equal(r, "value", value, "2")
		support.Equal(r, "number of children", stat.NumChildren, 1)
	})
	r.Step("container-goes", func(context.Context) {
		c.remove(r, container+"/child")
		gone(5*time.Second, container)
	})
	r.Step("container-unused", func(context.Context) {
		unused := r.Prefix + "/unused"
		makeContainer(unused)
		time.Sleep(3 * time.Second)
		r.That(c.exists(r, unused) != nil, "the unused container is gone")
		c.remove(r, unused)
	})
	r.Step("ttl", func(context.Context) {
		path := r.Prefix + "/ttl"
		support.Equal(r, "path", makeTTL(path, zk.FlagTTL), path)
		value, _ := c.get(r, path)
		support.Equal(r, "value", value, "1")
		gone(6*time.Second, path)
	})
	r.Step("ttl-set", func(context.Context) {
		path := r.Prefix + "/set"
		makeTTL(path, zk.FlagTTL)
		for number := range 6 {
			time.Sleep(500 * time.Millisecond)
			support.Equal(r, "version", c.set(r, path, fmt.Sprint(number)).Version, int32(number)+1)
		}
		r.That(c.exists(r, path) != nil, "the node that was set is gone")
		c.remove(r, path)
	})
	r.Step("ttl-sequential", func(context.Context) {
		parent := r.Prefix + "/numbered"
		c.create(r, parent, "", 0)
		made := makeTTL(parent+"/n-", zk.FlagPersistentSequentialWithTTL)
		support.Equal(r, "path", made, parent+"/n-0000000000")
		gone(6*time.Second, made)
		c.remove(r, parent)
		c.remove(r, r.Prefix)
	})
}
