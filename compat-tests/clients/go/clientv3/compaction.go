package clientv3

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["compaction"] = compaction }

func compaction(r *support.Run) {
	client := connect(r, r.Address)
	key := r.Prefix + "/key"
	var revisions []int64 // of the first put at 0

	r.Step("compact", func(ctx context.Context) {
		for number := 1; number <= 10; number++ {
			revisions = append(revisions, put(r, ctx, client, key, fmt.Sprint(number)).Header.Revision)
		}
		_, err := client.Compact(ctx, revisions[7])
		r.Must("compact", err)
	})
	r.Step("range", func(ctx context.Context) {
		_, err := client.Get(ctx, key, clientv3.WithRev(revisions[1]))
		refused(r, "get", err, rpctypes.ErrCompacted)
		support.Equal(r, "value at the ninth", string(get(r, ctx, client, key, clientv3.WithRev(revisions[8])).Value), "9")
	})
	r.Step("again", func(ctx context.Context) {
		_, err := client.Compact(ctx, revisions[7])
		refused(r, "compact", err, rpctypes.ErrCompacted)
	})
	r.Step("future", func(ctx context.Context) {
		_, err := client.Compact(ctx, revision(r, ctx, client)+1_000_000)
		refused(r, "compact", err, rpctypes.ErrFutureRev)
	})
	r.Step("watch", func(ctx context.Context) {
		responses := client.Watch(ctx, key, clientv3.WithRev(revisions[1]))
		last := support.Next(r, 10*time.Second, "end of the watch", responses)
		refused(r, "watch", last.Err(), rpctypes.ErrCompacted)
		support.Equal(r, "compact revision", last.CompactRevision, revisions[7])
		support.Equal(r, "canceled", last.Canceled, true)
		support.Equal(r, "events", len(last.Events), 0)
		select {
		case more, open := <-responses:
			r.That(!open, "after its end the watch gave %+v", more)
		case <-time.After(5 * time.Second):
			r.Fail("the watch's channel stays open after its end")
		}
	})
	r.Step("watch-later", func(ctx context.Context) {
		later := watch(r, client, key, clientv3.WithRev(revisions[8]))
		support.Equal(r, "mod revision", later.nextPut(r, key, "9").ModRevision, revisions[8])
		support.Equal(r, "mod revision", later.nextPut(r, key, "10").ModRevision, revisions[9])
		support.Silent(r, time.Second, "the watch", later.events)
		later.cancel()
		remove(r, ctx, client, key)
	})
}
