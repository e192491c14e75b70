package clientv3

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["lease"] = lease }

func lease(r *support.Run) {
	client := connect(r, r.Address)
	var id clientv3.LeaseID
	held, detached := r.Prefix+"/held", r.Prefix+"/detached"

	r.Step("grant", func(ctx context.Context) {
		granted, err := client.Grant(ctx, 60)
		r.Must("grant", err)
		r.That(granted.ID > 0, "id is %d", granted.ID)
		support.Equal(r, "ttl", granted.TTL, 60)
		id = granted.ID
	})
	r.Step("own-id", func(ctx context.Context) {
		// Grant takes no id; the package's plain lease client does.
		own := id ^ 0x5555
		plain := clientv3.RetryLeaseClient(client)
		granted, err := plain.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: 60, ID: int64(own)})
		r.Must("grant", err)
		support.Equal(r, "id", clientv3.LeaseID(granted.ID), own)
		_, err = plain.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: 60, ID: int64(own)})
		refused(r, "second grant", rpctypes.Error(err), rpctypes.ErrLeaseExist)
		_, err = client.Revoke(ctx, own)
		r.Must("revoke", err)
	})
	r.Step("attach", func(ctx context.Context) {
		for _, key := range []string{held, detached} {
			put(r, ctx, client, key, "1", clientv3.WithLease(id))
			support.Equal(r, "lease of "+key, clientv3.LeaseID(get(r, ctx, client, key).Lease), id)
		}
	})
	r.Step("ttl", func(ctx context.Context) {
		left, err := client.TimeToLive(ctx, id, clientv3.WithAttachedKeys())
		r.Must("time to live", err)
		support.Equal(r, "granted", left.GrantedTTL, 60)
		r.That(left.TTL >= 50 && left.TTL <= 60, "remaining %d", left.TTL)
		attached := map[string]bool{}
		for _, key := range left.Keys {
			attached[string(key)] = true
		}
		support.Equal(r, "keys", attached, map[string]bool{held: true, detached: true})
	})
	r.Step("leases", func(ctx context.Context) {
		all, err := client.Leases(ctx)
		r.Must("leases", err)
		found := 0
		for _, one := range all.Leases {
			if one.ID == id {
				found++
			}
		}
		support.Equal(r, "times in the list", found, 1)
	})
	r.Step("keep-alive", func(ctx context.Context) {
		renewed, err := client.KeepAliveOnce(ctx, id)
		r.Must("keep alive", err)
		support.Equal(r, "id", renewed.ID, id)
		support.Equal(r, "ttl", renewed.TTL, 60)
	})
	r.Step("detach", func(ctx context.Context) {
		put(r, ctx, client, detached, "2")
		support.Equal(r, "lease", get(r, ctx, client, detached).Lease, 0)
	})
	r.Step("no-lease", func(ctx context.Context) {
		_, err := client.Put(ctx, held, "3", clientv3.WithLease(id^0x7777))
		refused(r, "put", err, rpctypes.ErrLeaseNotFound)
		support.Equal(r, "value", string(get(r, ctx, client, held).Value), "1")
	})
	r.Step("revoke", func(ctx context.Context) {
		_, err := client.Revoke(ctx, id)
		r.Must("revoke", err)
		absent(r, ctx, client, held)
		support.Equal(r, "value of the detached", string(get(r, ctx, client, detached).Value), "2")
	})
	r.Step("revoke-again", func(ctx context.Context) {
		_, err := client.Revoke(ctx, id)
		refused(r, "revoke", err, rpctypes.ErrLeaseNotFound)
	})
	r.Step("gone", func(ctx context.Context) {
		left, err := client.TimeToLive(ctx, id)
		r.Must("time to live", err)
		support.Equal(r, "ttl", left.TTL, -1)
	})
	r.Step("keep-alive-gone", func(ctx context.Context) {
		// The client makes this error of TTL 0.
		_, err := client.KeepAliveOnce(ctx, id)
		refused(r, "keep alive", err, rpctypes.ErrLeaseNotFound)
	})
	r.Step("one-revision", func(ctx context.Context) {
		watching := watch(r, client, r.Prefix+"/three/", clientv3.WithPrefix())
		three := grant(r, ctx, client, 60)
		for _, name := range []string{"b", "a", "c"} {
			put(r, ctx, client, r.Prefix+"/three/"+name, name, clientv3.WithLease(three))
			watching.nextPut(r, r.Prefix+"/three/"+name, name)
		}
		before := revision(r, ctx, client)
		_, err := client.Revoke(ctx, three)
		r.Must("revoke", err)
		first := watching.nextDelete(r, r.Prefix+"/three/a").ModRevision
		r.That(first > before, "revision %d, deleted at %d", before, first)
		for _, name := range []string{"b", "c"} {
			support.Equal(r, "revision of the delete of "+name, watching.nextDelete(r, r.Prefix+"/three/"+name).ModRevision, first)
		}
		support.Silent(r, 300*time.Millisecond, "the watch", watching.events)
		watching.cancel()
		remove(r, ctx, client, detached)
	})
}
