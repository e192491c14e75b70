package clientv3

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["restart"] = restart }

func restart(r *support.Run) {
	client := connect(r, r.Address)
	leased, under := r.Prefix+"/leased", r.Prefix+"/watched/"
	var watching watching
	var id, bare clientv3.LeaseID
	var before *mvccpb.KeyValue
	var reached int64
	var up time.Time

	r.Step("before", func(ctx context.Context) {
		id = grant(r, ctx, client, 15)
		bare = grant(r, ctx, client, 300)
		keep(r, client, id)
		put(r, ctx, client, leased, "1", clientv3.WithLease(id))
		before = get(r, ctx, client, leased)
		watching = watch(r, client, under, clientv3.WithPrefix())
		put(r, ctx, client, under+"a", "before")
		reached = watching.nextPut(r, under+"a", "before").ModRevision
	})
	r.Step("down", func(context.Context) {
		r.Do("restart")
		up = time.Now()
		r.Within(15*time.Second, "a get after the restart", func() (bool, string) {
			ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
			defer cancel()
			_, err := client.Get(ctx, leased)
			return err == nil, fmt.Sprint(err)
		})
	})
	r.Step("stays", func(ctx context.Context) {
		pair := get(r, ctx, client, leased)
		support.Equal(r, "pair", pairText(pair), pairText(before))
		support.Equal(r, "lease", clientv3.LeaseID(pair.Lease), id)
		now := revision(r, ctx, client)
		r.That(now >= reached, "the revision was %d and is %d", reached, now)
		kept, err := client.TimeToLive(ctx, bare)
		r.Must("time to live of the lease without a key", err)
		support.Equal(r, "granted to it", kept.GrantedTTL, 300)
		r.That(kept.TTL > 200, "%d s of it remain", kept.TTL)
	})
	r.Step("watch", func(ctx context.Context) {
		for number := range 3 {
			value := fmt.Sprint("after ", number)
			made := put(r, ctx, client, under+"a", value).Header.Revision
			r.That(made > reached, "revision %d after %d", made, reached)
			support.Equal(r, "revision of the event", watching.nextPut(r, under+"a", value).ModRevision, made)
			reached = made
		}
		support.Silent(r, time.Second, "the watch", watching.events)
	})
	r.Step("alive", func(ctx context.Context) {
		time.Sleep(time.Until(up.Add(10 * time.Second)))
		support.Equal(r, "pair", pairText(get(r, ctx, client, leased)), pairText(before))
		left, err := client.TimeToLive(ctx, id)
		r.Must("time to live", err)
		support.Equal(r, "granted", left.GrantedTTL, 15)
		r.That(left.TTL >= 8, "the lease was not renewed after the restart, %d s are left", left.TTL)
		made := put(r, ctx, client, under+"a", "alive").Header.Revision
		support.Equal(r, "revision of the event", watching.nextPut(r, under+"a", "alive").ModRevision, made)
		support.Silent(r, 300*time.Millisecond, "the watch", watching.events)
	})
}
