package clientv3

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["kv"] = kv }

func kv(r *support.Run) {
	client := connect(r, r.Address)
	key := r.Prefix + "/key"
	under := r.Prefix + "/five/"
	var every [256]byte
	for at := range every {
		every[at] = byte(at)
	}
	var first, second int64

	r.Step("put", func(ctx context.Context) {
		moves(r, "a put", 1, func() (int64, int64) {
			remove(r, ctx, client, key)
			before := revision(r, ctx, client)
			first = put(r, ctx, client, key, string(every[:])).Header.Revision
			return before, first
		})
		pair := get(r, ctx, client, key)
		support.Equal(r, "value", pair.Value, every[:])
		support.Equal(r, "create revision", pair.CreateRevision, first)
		support.Equal(r, "mod revision", pair.ModRevision, first)
		support.Equal(r, "version", pair.Version, 1)
		support.Equal(r, "lease", pair.Lease, 0)
	})
	r.Step("again", func(ctx context.Context) {
		second = put(r, ctx, client, key, "second").Header.Revision
		pair := get(r, ctx, client, key)
		support.Equal(r, "value", string(pair.Value), "second")
		support.Equal(r, "create revision", pair.CreateRevision, first)
		support.Equal(r, "mod revision", pair.ModRevision, second)
		r.That(second > first, "revision %d after %d", second, first)
		support.Equal(r, "version", pair.Version, 2)
	})
	r.Step("prev-kv", func(ctx context.Context) {
		other := r.Prefix + "/prev"
		fresh := put(r, ctx, client, other, "1", clientv3.WithPrevKV())
		r.That(fresh.PrevKv == nil, "a new key had %v", fresh.PrevKv)
		made := fresh.Header.Revision
		changed := put(r, ctx, client, other, "2", clientv3.WithPrevKV())
		r.That(changed.PrevKv != nil, "the put gave no pair")
		support.Equal(r, "pair of the put", pairText(changed.PrevKv), fmt.Sprintf("%s=1 create %d mod %d version 1 lease 0", other, made, made))
		gone := remove(r, ctx, client, other, clientv3.WithPrevKV())
		support.Equal(r, "pairs of the delete", len(gone.PrevKvs), 1)
		support.Equal(r, "pair of the delete", pairText(gone.PrevKvs[0]),
			fmt.Sprintf("%s=2 create %d mod %d version 2 lease 0", other, made, changed.Header.Revision))
	})
	r.Step("missing", func(ctx context.Context) { absent(r, ctx, client, r.Prefix+"/missing") })
	r.Step("delete", func(ctx context.Context) {
		moves(r, "a delete", 1, func() (int64, int64) {
			before := put(r, ctx, client, key, "short-lived").Header.Revision
			gone := remove(r, ctx, client, key)
			support.Equal(r, "deleted", gone.Deleted, 1)
			absent(r, ctx, client, key)
			return before, gone.Header.Revision
		})
		again := put(r, ctx, client, key, "anew")
		pair := get(r, ctx, client, key)
		support.Equal(r, "version", pair.Version, 1)
		support.Equal(r, "create revision", pair.CreateRevision, again.Header.Revision)
	})
	r.Step("delete-none", func(ctx context.Context) {
		moves(r, "a delete of nothing", 0, func() (int64, int64) {
			before := revision(r, ctx, client)
			gone := remove(r, ctx, client, r.Prefix+"/missing")
			support.Equal(r, "deleted", gone.Deleted, 0)
			r.That(gone.Header.Revision >= before, "revision %d, then %d", before, gone.Header.Revision)
			return before, revision(r, ctx, client)
		})
	})

	names := []string{under + "a", under + "b", under + "c", under + "d", under + "e"}
	r.Step("prefix", func(ctx context.Context) {
		put(r, ctx, client, r.Prefix+"/five", "before")
		put(r, ctx, client, r.Prefix+"/five0", "after") // '0' is the byte after '/'
		for _, at := range []int{2, 0, 4, 1, 3} {
			put(r, ctx, client, names[at], fmt.Sprint(at))
		}
		all := list(r, ctx, client, under, clientv3.WithPrefix())
		support.Equal(r, "keys", keys(all.Kvs), names)
		for at, pair := range all.Kvs {
			support.Equal(r, "value", string(pair.Value), fmt.Sprint(at))
		}
		support.Equal(r, "count", all.Count, 5)
		support.Equal(r, "more", all.More, false)
	})
	r.Step("limit", func(ctx context.Context) {
		some := list(r, ctx, client, under, clientv3.WithPrefix(), clientv3.WithLimit(2))
		support.Equal(r, "keys", keys(some.Kvs), names[:2])
		support.Equal(r, "more", some.More, true)
		support.Equal(r, "count", some.Count, 5)
	})
	r.Step("sort", func(ctx context.Context) {
		sorted := func(by clientv3.SortTarget, order clientv3.SortOrder) []string {
			return keys(list(r, ctx, client, under, clientv3.WithPrefix(), clientv3.WithSort(by, order)).Kvs)
		}
		down := slices.Clone(names)
		slices.Reverse(down)
		support.Equal(r, "by key, descending", sorted(clientv3.SortByKey, clientv3.SortDescend), down)
		made := []string{names[2], names[0], names[4], names[1], names[3]}
		support.Equal(r, "by mod revision, ascending", sorted(clientv3.SortByModRevision, clientv3.SortAscend), made)
		slices.Reverse(made)
		support.Equal(r, "by mod revision, descending", sorted(clientv3.SortByModRevision, clientv3.SortDescend), made)
	})
	r.Step("keys-only", func(ctx context.Context) {
		full := list(r, ctx, client, under, clientv3.WithPrefix())
		bare := list(r, ctx, client, under, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		support.Equal(r, "keys", keys(bare.Kvs), names)
		for at, pair := range bare.Kvs {
			support.Equal(r, "value", len(pair.Value), 0)
			support.Equal(r, "create revision", pair.CreateRevision, full.Kvs[at].CreateRevision)
			support.Equal(r, "mod revision", pair.ModRevision, full.Kvs[at].ModRevision)
			support.Equal(r, "version", pair.Version, 1)
		}
	})
	r.Step("count-only", func(ctx context.Context) {
		counted := list(r, ctx, client, under, clientv3.WithPrefix(), clientv3.WithCountOnly())
		support.Equal(r, "pairs", len(counted.Kvs), 0)
		support.Equal(r, "count", counted.Count, 5)
	})
	r.Step("from-key", func(ctx context.Context) {
		rest := list(r, ctx, client, names[2], clientv3.WithRange(clientv3.GetPrefixRangeEnd(under)))
		support.Equal(r, "keys", keys(rest.Kvs), names[2:])
	})
	r.Step("past", func(ctx context.Context) {
		before := revision(r, ctx, client)
		past := list(r, ctx, client, key, clientv3.WithRev(second))
		after := revision(r, ctx, client)
		support.Equal(r, "pairs", len(past.Kvs), 1)
		support.Equal(r, "value", string(past.Kvs[0].Value), "second")
		support.Equal(r, "version", past.Kvs[0].Version, 2)
		r.That(past.Header.Revision >= before && past.Header.Revision <= after, "the header shows %d, the store was at %d to %d",
			past.Header.Revision, before, after)
	})
	r.Step("future", func(ctx context.Context) {
		_, err := client.Get(ctx, key, clientv3.WithRev(revision(r, ctx, client)+1_000_000))
		refused(r, "get", err, rpctypes.ErrFutureRev)
	})
	r.Step("serializable", func(ctx context.Context) {
		support.Equal(r, "value", string(get(r, ctx, client, key, clientv3.WithSerializable()).Value), "anew")
	})
	r.Step("delete-prefix", func(ctx context.Context) {
		gone := remove(r, ctx, client, under, clientv3.WithPrefix())
		support.Equal(r, "deleted", gone.Deleted, 5)
		support.Equal(r, "left", list(r, ctx, client, under, clientv3.WithPrefix()).Count, 0)
		at := gone.Header.Revision
		support.Equal(r, "keys one revision before", keys(list(r, ctx, client, under, clientv3.WithPrefix(), clientv3.WithRev(at-1)).Kvs), names)
		support.Equal(r, "keys at the delete's", keys(list(r, ctx, client, under, clientv3.WithPrefix(), clientv3.WithRev(at)).Kvs), []string{})
		get(r, ctx, client, r.Prefix+"/five")
		get(r, ctx, client, r.Prefix+"/five0")
	})
	r.Step("ignore-value", func(ctx context.Context) {
		_, err := client.Put(ctx, r.Prefix+"/missing", "", clientv3.WithIgnoreValue())
		refused(r, "put", err, rpctypes.ErrKeyNotFound)
		before := get(r, ctx, client, key)
		touched := put(r, ctx, client, key, "", clientv3.WithIgnoreValue())
		pair := get(r, ctx, client, key)
		support.Equal(r, "value", string(pair.Value), "anew")
		support.Equal(r, "version", pair.Version, before.Version+1)
		support.Equal(r, "mod revision", pair.ModRevision, touched.Header.Revision)
	})
	r.Step("empty-key", func(ctx context.Context) {
		_, err := client.Put(ctx, "", "value")
		refused(r, "put", err, rpctypes.ErrEmptyKey)
	})
	r.Step("too-large", func(ctx context.Context) {
		_, err := client.Put(ctx, r.Prefix+"/large", strings.Repeat("x", 2_000_000))
		refused(r, "put", err, rpctypes.ErrRequestTooLarge)
		absent(r, ctx, client, r.Prefix+"/large")
		large := strings.Repeat("y", 1_000_000)
		put(r, ctx, client, r.Prefix+"/large", large)
		pair := get(r, ctx, client, r.Prefix+"/large")
		r.That(string(pair.Value) == large, "the large value came back with %d bytes", len(pair.Value))
		remove(r, ctx, client, r.Prefix+"/", clientv3.WithPrefix())
	})
}

func list(r *support.Run, ctx context.Context, client *clientv3.Client, key string, options ...clientv3.OpOption) *clientv3.GetResponse {
	response, err := client.Get(ctx, key, options...)
	r.Must("get "+key, err)
	return response
}
