package clientv3

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["watch"] = watchScenario }

func watchScenario(r *support.Run) {
	client, other := connect(r, r.Address), connect(r, r.Address)
	key := r.Prefix + "/key"
	const quiet = time.Second
	var single watching
	var history []int64

	r.Step("put", func(ctx context.Context) {
		single = watch(r, client, key)
		made := put(r, ctx, other, key, "1").Header.Revision
		pair := single.nextPut(r, key, "1")
		support.Equal(r, "pair", pairText(pair), fmt.Sprintf("%s=1 create %d mod %d version 1 lease 0", key, made, made))
		support.Silent(r, 300*time.Millisecond, "the watch after one event", single.events)
	})
	r.Step("delete", func(ctx context.Context) {
		gone := remove(r, ctx, other, key).Header.Revision
		support.Equal(r, "mod revision", single.nextDelete(r, key).ModRevision, gone)
		support.Silent(r, 300*time.Millisecond, "the watch after one event", single.events)
		single.cancel()
	})
	r.Step("prefix", func(ctx context.Context) {
		under := r.Prefix + "/prefix/"
		watching := watch(r, client, under, clientv3.WithPrefix())
		for _, name := range []string{"c", "a", "b"} {
			put(r, ctx, other, under+name, name)
		}
		last := int64(0)
		for _, name := range []string{"c", "a", "b"} {
			pair := watching.nextPut(r, under+name, name)
			r.That(pair.ModRevision > last, "revision %d after %d", pair.ModRevision, last)
			last = pair.ModRevision
		}
		put(r, ctx, other, r.Prefix+"/prefix", "before")
		put(r, ctx, other, r.Prefix+"/prefix0", "after") // '0' is the byte after '/'
		support.Silent(r, quiet, "the watch on the prefix", watching.events)
		watching.cancel()
	})
	r.Step("prev-kv", func(ctx context.Context) {
		watching := watch(r, client, key, clientv3.WithPrevKV())
		made := put(r, ctx, other, key, "1").Header.Revision
		event := watching.next(r, "create")
		r.That(event.IsCreate() && event.PrevKv == nil, "create came with %v", event.PrevKv)
		changed := put(r, ctx, other, key, "2").Header.Revision
		event = watching.next(r, "update")
		r.That(event.IsModify() && event.PrevKv != nil, "update came without the pair before")
		support.Equal(r, "pair before the update", pairText(event.PrevKv), fmt.Sprintf("%s=1 create %d mod %d version 1 lease 0", key, made, made))
		remove(r, ctx, other, key)
		event = watching.next(r, "delete")
		r.That(event.Type == clientv3.EventTypeDelete && event.PrevKv != nil, "delete came without the pair before")
		support.Equal(r, "pair before the delete", pairText(event.PrevKv), fmt.Sprintf("%s=2 create %d mod %d version 2 lease 0", key, made, changed))
		watching.cancel()
	})
	r.Step("filters", func(ctx context.Context) {
		noPut, noDelete := watch(r, client, key, clientv3.WithFilterPut()), watch(r, client, key, clientv3.WithFilterDelete())
		put(r, ctx, other, key, "1")
		remove(r, ctx, other, key)
		put(r, ctx, other, key, "2")
		noPut.nextDelete(r, key)
		noDelete.nextPut(r, key, "1")
		noDelete.nextPut(r, key, "2")
		support.Silent(r, 500*time.Millisecond, "the watch without puts", noPut.events)
		support.Silent(r, 100*time.Millisecond, "the watch without deletes", noDelete.events)
		noPut.cancel()
		noDelete.cancel()
	})
	r.Step("history", func(ctx context.Context) {
		history = append(history, put(r, ctx, other, key, "3").Header.Revision, remove(r, ctx, other, key).Header.Revision,
			put(r, ctx, other, key, "4").Header.Revision)
		watching := watch(r, client, key, clientv3.WithRev(history[0]))
		later := put(r, ctx, other, key, "5").Header.Revision
		support.Equal(r, "first revision", watching.nextPut(r, key, "3").ModRevision, history[0])
		support.Equal(r, "second revision", watching.nextDelete(r, key).ModRevision, history[1])
		support.Equal(r, "third revision", watching.nextPut(r, key, "4").ModRevision, history[2])
		support.Equal(r, "later revision", watching.nextPut(r, key, "5").ModRevision, later)
		support.Silent(r, 300*time.Millisecond, "the watch", watching.events)
		watching.cancel()
	})
	r.Step("txn", func(ctx context.Context) {
		under := r.Prefix + "/txn/"
		put(r, ctx, other, under+"b", "0")
		watching := watch(r, client, under, clientv3.WithPrefix())
		done, err := other.Txn(ctx).Then(clientv3.OpPut(under+"c", "1"), clientv3.OpDelete(under+"b"), clientv3.OpPut(under+"a", "2")).Commit()
		r.Must("transaction", err)
		support.Equal(r, "revision", watching.nextPut(r, under+"c", "1").ModRevision, done.Header.Revision)
		support.Equal(r, "revision", watching.nextDelete(r, under+"b").ModRevision, done.Header.Revision)
		support.Equal(r, "revision", watching.nextPut(r, under+"a", "2").ModRevision, done.Header.Revision)
		watching.cancel()
	})
	var three [3]watching
	own := func(at int) string { return fmt.Sprintf("%s/many/%d", r.Prefix, at) }
	r.Step("many", func(ctx context.Context) {
		for at := range three {
			three[at] = watch(r, client, own(at))
		}
		for at := range three {
			put(r, ctx, other, own(at), fmt.Sprint("own ", at))
		}
		for at, one := range three {
			one.nextPut(r, own(at), fmt.Sprint("own ", at))
		}
		for _, one := range three {
			support.Silent(r, 200*time.Millisecond, "a watch after its own event", one.events)
		}
	})
	r.Step("cancel", func(ctx context.Context) {
		three[1].cancel()
		r.Within(3*time.Second, "the end of the cancelled watch", func() (bool, string) {
			select {
			case event, open := <-three[1].events:
				return !open, fmt.Sprint(event)
			default:
				return false, "it still open"
			}
		})
		for at := range three {
			put(r, ctx, other, own(at), "after")
		}
		three[0].nextPut(r, own(0), "after")
		three[2].nextPut(r, own(2), "after")
		three[0].cancel()
		three[2].cancel()
	})
	r.Step("burst", func(ctx context.Context) {
		under := r.Prefix + "/burst/"
		watching := watch(r, client, under, clientv3.WithPrefix())
		put500 := make(chan error, 1)
		go func() {
			for number := range 500 {
				if _, err := other.Put(ctx, fmt.Sprintf("%s%d", under, number%7), fmt.Sprint(number)); err != nil {
					put500 <- err
					return
				}
			}
			put500 <- nil
		}()
		last := int64(0)
		for number := range 500 {
			pair := watching.nextPut(r, fmt.Sprintf("%s%d", under, number%7), fmt.Sprint(number))
			r.That(pair.ModRevision > last, "revision %d after %d", pair.ModRevision, last)
			last = pair.ModRevision
		}
		r.Must("500 puts", <-put500)
		support.Silent(r, quiet, "the watch after the burst", watching.events)
		watching.cancel()
		remove(r, ctx, other, r.Prefix+"/", clientv3.WithPrefix())
	})
}
