package clientv3

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/mirror"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["mirror"] = mirrored }

// copying is a mirror that runs: the last revision that it has copied, and its end.
type copying struct {
	stop func()
	done chan copied
}

type copied struct {
	revision int64
	err      error
}

func mirrored(r *support.Run) {
	client := connect(r, r.Address)
	one, two, three, four := r.Prefix+"/one/", r.Prefix+"/two/", r.Prefix+"/three/", r.Prefix+"/four/"
	var first copying

	r.Step("base", func(ctx context.Context) {
		for hundred := range 12 {
			puts := []clientv3.Op{}
			for number := range 100 {
				puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%d-%d", one, hundred, number), fmt.Sprintf("value-%d-%d", hundred, number)))
			}
			_, err := client.Txn(ctx).Then(puts...).Commit()
			r.Must("txn", err)
		}
		first = begin(r, one, two, 0)
		same(r, ctx, client, one, two)
		support.Equal(r, "keys", len(content(r, ctx, client, two)), 1200)
	})
	r.Step("live", func(ctx context.Context) {
		put(r, ctx, client, one+"new", "1")
		put(r, ctx, client, one+"0-0", "changed")
		remove(r, ctx, client, one+"0-1")
		_, err := client.Txn(ctx).Then(clientv3.OpPut(one+"a", "1"), clientv3.OpPut(one+"b", "2"), clientv3.OpDelete(one+"0-2")).Commit()
		r.Must("txn", err)
		same(r, ctx, client, one, two)
	})
	r.Step("stopped", func(ctx context.Context) {
		first.stop()
		known := support.Next(r, 5*time.Second, "end of the mirror", first.done)
		r.Must("mirror", known.err)
		remove(r, ctx, client, one+"0-3")
		put(r, ctx, client, one+"0-3", "again")
		remove(r, ctx, client, one+"0-4")
		put(r, ctx, client, one+"late", "x")
		begin(r, one, two, known.revision)
		same(r, ctx, client, one, two)
	})
	r.Step("back", func(ctx context.Context) {
		begin(r, two, three, 0)
		begin(r, three, four, 0)
		same(r, ctx, client, two, three)
		same(r, ctx, client, three, four)
		remove(r, ctx, client, one+"1-1")
		same(r, ctx, client, one, two)
		same(r, ctx, client, two, three)
		same(r, ctx, client, three, four)
		absent(r, ctx, client, four+"1-1")
	})
}

// begin has a mirror copy from one prefix to another, from what is there or from after a revision that was copied.
func begin(r *support.Run, from, to string, known int64) copying {
	source, sink := connect(r, r.Address), connect(r, r.Address)
	ctx, cancel := context.WithCancel(r.Context())
	run := copying{stop: cancel, done: make(chan copied, 1)}
	syncer := mirror.NewSyncer(source, from, known)
	go func() {
		revision, err := follows(ctx, syncer, sink, from, to, known)
		if ctx.Err() != nil {
			err = nil
		}
		run.done <- copied{revision, err}
	}()
	return run
}

func follows(ctx context.Context, syncer mirror.Syncer, sink *clientv3.Client, from, to string, known int64) (int64, error) {
	moved := func(key []byte) string { return to + strings.TrimPrefix(string(key), from) }
	if known == 0 {
		pages, failed := syncer.SyncBase(ctx)
		for page := range pages {
			for some := range slices.Chunk(page.Kvs, 100) {
				puts := []clientv3.Op{}
				for _, pair := range some {
					puts = append(puts, clientv3.OpPut(moved(pair.Key), string(pair.Value)))
				}
				if _, err := sink.Txn(ctx).Then(puts...).Commit(); err != nil {
					return 0, err
				}
			}
		}
		if err := <-failed; err != nil {
			return 0, err
		}
	}
	for response := range syncer.SyncUpdates(ctx) {
		if err := response.Err(); err != nil {
			return known, err
		}
		// A key may stand twice among the events of one response, in two revisions; not in one.
		ops, revision := []clientv3.Op{}, int64(0)
		commit := func() error {
			if len(ops) == 0 {
				return nil
			}
			_, err := sink.Txn(ctx).Then(ops...).Commit()
			ops, known = nil, revision
			return err
		}
		for _, event := range response.Events {
			if event.Kv.ModRevision != revision {
				if err := commit(); err != nil {
					return known, err
				}
				revision = event.Kv.ModRevision
			}
			if event.Type == clientv3.EventTypeDelete {
				ops = append(ops, clientv3.OpDelete(moved(event.Kv.Key)))
			} else {
				ops = append(ops, clientv3.OpPut(moved(event.Kv.Key), string(event.Kv.Value)))
			}
		}
		if err := commit(); err != nil {
			return known, err
		}
	}
	return known, nil
}

// content is what stands under a prefix, by what follows it.
func content(r *support.Run, ctx context.Context, client *clientv3.Client, prefix string) map[string]string {
	got, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	r.Must("get "+prefix, err)
	pairs := map[string]string{}
	for _, pair := range got.Kvs {
		pairs[strings.TrimPrefix(string(pair.Key), prefix)] = string(pair.Value)
	}
	return pairs
}

// same waits until both prefixes have the same keys and values.
func same(r *support.Run, ctx context.Context, client *clientv3.Client, left, right string) {
	r.Within(10*time.Second, right+" is as "+left, func() (bool, string) {
		want, got := content(r, ctx, client, left), content(r, ctx, client, right)
		differ := []string{}
		for name, value := range want {
			if got[name] != value {
				differ = append(differ, name)
			}
		}
		for name := range got {
			if _, known := want[name]; !known {
				differ = append(differ, "more: "+name)
			}
		}
		return len(differ) == 0 && len(want) > 0, fmt.Sprintf("%d and %d keys, different %v", len(want), len(got), differ[:min(3, len(differ))])
	})
}
