package clientv3

import (
	"context"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["txn"] = txn }

func txn(r *support.Run) {
	client := connect(r, r.Address)
	key := r.Prefix + "/key"
	commit := func(txn clientv3.Txn) *clientv3.TxnResponse {
		response, err := txn.Commit()
		r.Must("transaction", err)
		return response
	}
	create := func(ctx context.Context) *clientv3.TxnResponse {
		return commit(client.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), "=", 0)).
			Then(clientv3.OpPut(key, "made")).Else(clientv3.OpGet(key)))
	}

	r.Step("then", func(ctx context.Context) {
		done := create(ctx)
		support.Equal(r, "succeeded", done.Succeeded, true)
		support.Equal(r, "responses", len(done.Responses), 1)
		r.That(done.Responses[0].GetResponsePut() != nil, "the response is %v", done.Responses[0])
		pair := get(r, ctx, client, key)
		support.Equal(r, "value", string(pair.Value), "made")
		support.Equal(r, "mod revision", pair.ModRevision, done.Header.Revision)
	})
	r.Step("otherwise", func(ctx context.Context) {
		done := create(ctx)
		support.Equal(r, "succeeded", done.Succeeded, false)
		support.Equal(r, "responses", len(done.Responses), 1)
		found := done.Responses[0].GetResponseRange()
		r.That(found != nil && len(found.Kvs) == 1 && string(found.Kvs[0].Value) == "made", "the else branch gave %v", done.Responses[0])
		support.Equal(r, "version", get(r, ctx, client, key).Version, 1)
	})
	r.Step("compares", func(ctx context.Context) {
		put(r, ctx, client, key, "m")
		pair := get(r, ctx, client, key)
		holds := func(compare clientv3.Cmp) bool { return commit(client.Txn(ctx).If(compare)).Succeeded }
		for _, target := range []struct {
			name               string
			of                 clientv3.Cmp
			below, same, above any
		}{
			{"value", clientv3.Value(key), "l", "m", "n"},
			{"version", clientv3.Version(key), 1, 2, 3},
			{"create revision", clientv3.CreateRevision(key), pair.CreateRevision - 1, pair.CreateRevision, pair.CreateRevision + 1},
			{"mod revision", clientv3.ModRevision(key), pair.ModRevision - 1, pair.ModRevision, pair.ModRevision + 1},
		} {
			for _, case_ := range []struct {
				operator           string
				below, same, above bool
			}{{"=", false, true, false}, {"!=", true, false, true}, {">", true, false, false}, {"<", false, false, true}} {
				what := target.name + " " + case_.operator + " "
				support.Equal(r, what+"less", holds(clientv3.Compare(target.of, case_.operator, target.below)), case_.below)
				support.Equal(r, what+"the same", holds(clientv3.Compare(target.of, case_.operator, target.same)), case_.same)
				support.Equal(r, what+"more", holds(clientv3.Compare(target.of, case_.operator, target.above)), case_.above)
			}
		}
	})
	r.Step("several", func(ctx context.Context) {
		var done *clientv3.TxnResponse
		moves(r, "a transaction of four", 1, func() (int64, int64) {
			put(r, ctx, client, key, "to be deleted")
			before := revision(r, ctx, client)
			done = commit(client.Txn(ctx).Then(clientv3.OpPut(r.Prefix+"/1", "1"), clientv3.OpDelete(key),
				clientv3.OpPut(r.Prefix+"/2", "2"), clientv3.OpPut(r.Prefix+"/3", "3")))
			return before, done.Header.Revision
		})
		support.Equal(r, "responses", len(done.Responses), 4)
		for _, at := range []int{0, 2, 3} {
			r.That(done.Responses[at].GetResponsePut() != nil, "response %d is %v", at, done.Responses[at])
		}
		gone := done.Responses[1].GetResponseDeleteRange()
		r.That(gone != nil && gone.Deleted == 1, "response 1 is %v", done.Responses[1])
		for _, name := range []string{"1", "2", "3"} {
			pair := get(r, ctx, client, r.Prefix+"/"+name)
			support.Equal(r, "value", string(pair.Value), name)
			support.Equal(r, "mod revision", pair.ModRevision, done.Header.Revision)
		}
		absent(r, ctx, client, key)
	})
	r.Step("reads", func(ctx context.Context) {
		put(r, ctx, client, key, "old")
		done := commit(client.Txn(ctx).Then(clientv3.OpPut(key, "new"), clientv3.OpGet(key)))
		found := done.Responses[1].GetResponseRange()
		r.That(found != nil && len(found.Kvs) == 1, "the get gave %v", done.Responses[1])
		support.Equal(r, "value", string(found.Kvs[0].Value), "new")
		support.Equal(r, "mod revision", found.Kvs[0].ModRevision, done.Header.Revision)
	})
	r.Step("read-only", func(ctx context.Context) {
		moves(r, "a transaction of gets", 0, func() (int64, int64) {
			before := revision(r, ctx, client)
			done := commit(client.Txn(ctx).Then(clientv3.OpGet(key), clientv3.OpGet(r.Prefix+"/1")))
			support.Equal(r, "responses", len(done.Responses), 2)
			after := revision(r, ctx, client)
			r.That(before <= done.Header.Revision && done.Header.Revision <= after, "revision %d, the transaction's header %d, then %d", before, done.Header.Revision, after)
			return before, after
		})
	})
	r.Step("all-or-nothing", func(ctx context.Context) {
		moves(r, "a transaction that does nothing", 0, func() (int64, int64) {
			before := revision(r, ctx, client)
			done := commit(client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", "new"), clientv3.Compare(clientv3.Value(key), "=", "old")).
				Then(clientv3.OpPut(r.Prefix+"/not", "1"), clientv3.OpDelete(key)))
			support.Equal(r, "succeeded", done.Succeeded, false)
			support.Equal(r, "responses", len(done.Responses), 0)
			return before, revision(r, ctx, client)
		})
		absent(r, ctx, client, r.Prefix+"/not")
		support.Equal(r, "value", string(get(r, ctx, client, key).Value), "new")
	})
	r.Step("duplicate", func(ctx context.Context) {
		moves(r, "a refused transaction", 0, func() (int64, int64) {
			before := revision(r, ctx, client)
			_, err := client.Txn(ctx).Then(clientv3.OpPut(key, "a"), clientv3.OpPut(key, "b")).Commit()
			refused(r, "transaction", err, rpctypes.ErrDuplicateKey)
			return before, revision(r, ctx, client)
		})
		support.Equal(r, "value", string(get(r, ctx, client, key).Value), "new")
	})
	r.Step("nested", func(ctx context.Context) {
		inner := clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "=", "outer")},
			[]clientv3.Op{clientv3.OpPut(r.Prefix+"/inner", "then"), clientv3.OpGet(key)}, []clientv3.Op{clientv3.OpPut(r.Prefix+"/inner", "else")})
		done := commit(client.Txn(ctx).Then(clientv3.OpPut(r.Prefix+"/outer", "1"), inner))
		support.Equal(r, "responses", len(done.Responses), 2)
		within := done.Responses[1].GetResponseTxn()
		r.That(within != nil, "the inner transaction gave %v", done.Responses[1])
		support.Equal(r, "inner succeeded", within.Succeeded, false)
		support.Equal(r, "inner responses", len(within.Responses), 1)
		support.Equal(r, "inner value", string(get(r, ctx, client, r.Prefix+"/inner").Value), "else")
		support.Equal(r, "outer revision", get(r, ctx, client, r.Prefix+"/outer").ModRevision, done.Header.Revision)
		support.Equal(r, "inner revision", get(r, ctx, client, r.Prefix+"/inner").ModRevision, done.Header.Revision)
	})
	r.Step("cas", func(ctx context.Context) {
		counter := r.Prefix + "/counter"
		put(r, ctx, client, counter, "0")
		finished := make(chan error, 4)
		for range 4 {
			own := connect(r, r.Address)
			go func() { finished <- compareAndSet(ctx, own, counter) }()
		}
		for range 4 {
			r.Must("a client", <-finished)
		}
		pair := get(r, ctx, client, counter)
		support.Equal(r, "counter", string(pair.Value), "40")
		support.Equal(r, "version", pair.Version, 41)
		remove(r, ctx, client, r.Prefix+"/", clientv3.WithPrefix())
	})
}

// compareAndSet adds one to the key until it has succeeded ten times.
func compareAndSet(ctx context.Context, client *clientv3.Client, key string) error {
	for succeeded := 0; succeeded < 10; {
		got, err := client.Get(ctx, key)
		if err != nil {
			return err
		}
		if len(got.Kvs) != 1 {
			return fmt.Errorf("%s is not there", key)
		}
		number, err := strconv.Atoi(string(got.Kvs[0].Value))
		if err != nil {
			return err
		}
		done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", got.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(key, strconv.Itoa(number+1))).Commit()
		if err != nil {
			return err
		}
		if done.Succeeded {
			succeeded++
		}
	}
	return nil
}
