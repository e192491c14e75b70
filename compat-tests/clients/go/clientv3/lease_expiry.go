package clientv3

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["lease-expiry"] = leaseExpiry }

func leaseExpiry(r *support.Run) {
	client := connect(r, r.Address)
	var stop func()
	kept := r.Prefix + "/kept"

	r.Step("expires", func(ctx context.Context) {
		key := r.Prefix + "/left"
		watching := watch(r, client, key)
		granted := time.Now()
		lease := grant(r, ctx, client, 2)
		put(r, ctx, client, key, "1", clientv3.WithLease(lease))
		watching.nextPut(r, key, "1")
		watching.nextDelete(r, key)
		took := time.Since(granted)
		r.That(took >= 1500*time.Millisecond && took <= 6*time.Second, "the delete came %v after the grant", took)
		absent(r, ctx, client, key)
		watching.cancel()
	})
	r.Step("kept", func(ctx context.Context) {
		lease := grant(r, ctx, client, 2)
		put(r, ctx, client, kept, "1", clientv3.WithLease(lease))
		stop = keep(r, client, lease)
		time.Sleep(7 * time.Second)
		pair := get(r, ctx, client, kept)
		support.Equal(r, "lease", clientv3.LeaseID(pair.Lease), lease)
		support.Equal(r, "version", pair.Version, 1)
	})
	r.Step("stopped", func(ctx context.Context) {
		stop()
		r.Within(7*time.Second, "the key is gone", func() (bool, string) {
			return list(r, ctx, client, kept).Count == 0, "the key"
		})
	})
}
