package clientv3

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["reconnect"] = reconnect }

func reconnect(r *support.Run) {
	far, direct := connect(r, r.Link()), connect(r, r.Address)
	leased, under := r.Prefix+"/leased", r.Prefix+"/watched/"
	var watching watching
	var id clientv3.LeaseID
	var before string
	var mended time.Time

	r.Step("before", func(ctx context.Context) {
		id = grant(r, ctx, far, 15)
		keep(r, far, id)
		put(r, ctx, far, leased, "1", clientv3.WithLease(id))
		before = pairText(get(r, ctx, direct, leased))
		watching = watch(r, far, under, clientv3.WithPrefix())
		put(r, ctx, direct, under+"a", "1")
		watching.nextPut(r, under+"a", "1")
	})
	var revisions [4]int64
	r.Step("away", func(ctx context.Context) {
		r.Do("cut")
		for at, name := range []string{"b", "c", "d"} {
			revisions[at] = put(r, ctx, direct, under+name, name).Header.Revision
		}
		revisions[3] = remove(r, ctx, direct, under+"b").Header.Revision
		time.Sleep(2 * time.Second)
		r.Do("mend")
		mended = time.Now()
	})
	r.Step("missed", func(context.Context) {
		for at, name := range []string{"b", "c", "d"} {
			support.Equal(r, "revision of the put of "+name, watching.nextPut(r, under+name, name).ModRevision, revisions[at])
		}
		support.Equal(r, "revision of the delete", watching.nextDelete(r, under+"b").ModRevision, revisions[3])
		support.Silent(r, time.Second, "the watch", watching.events)
	})
	r.Step("alive", func(ctx context.Context) {
		time.Sleep(time.Until(mended.Add(8 * time.Second)))
		pair := get(r, ctx, direct, leased)
		support.Equal(r, "lease", clientv3.LeaseID(pair.Lease), id)
		support.Equal(r, "pair", pairText(pair), before)
		left, err := direct.TimeToLive(ctx, id)
		r.Must("time to live", err)
		r.That(left.TTL >= 8, "the lease was not renewed after the cut, %d s are left", left.TTL)
		support.Equal(r, "value over the link", string(get(r, ctx, far, leased).Value), "1")
		made := put(r, ctx, direct, under+"e", "alive").Header.Revision
		support.Equal(r, "revision of the event", watching.nextPut(r, under+"e", "alive").ModRevision, made)
		support.Silent(r, 300*time.Millisecond, "the watch", watching.events)
	})
}
