// Package clientv3 is the bench's scenarios for etcd's own Go client, a file each.
package clientv3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"causeway.dev/compat-tests/clients/go/support"
)

// Scenarios by name; each file puts its own in.
var Scenarios = map[string]support.Scenario{}

// connect makes a client as an application would, closed when the program ends.
func connect(r *support.Run, address string) *clientv3.Client {
	client, err := clientv3.New(config(address))
	r.Must("connect", err)
	r.Cleanup(func() { _ = client.Close() })
	return client
}

func config(address string) clientv3.Config {
	return clientv3.Config{
		Endpoints:            strings.Split(address, ","),
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	}
}

// get expects the key to be there.
func get(r *support.Run, ctx context.Context, client *clientv3.Client, key string, options ...clientv3.OpOption) *mvccpb.KeyValue {
	got, err := client.Get(ctx, key, options...)
	r.Must("get "+key, err)
	if len(got.Kvs) != 1 {
		r.Fail("get %s: want one pair, got %d", key, len(got.Kvs))
	}
	support.Equal(r, "key", string(got.Kvs[0].Key), key)
	return got.Kvs[0]
}

// absent expects the key not to be there.
func absent(r *support.Run, ctx context.Context, client *clientv3.Client, key string) {
	got, err := client.Get(ctx, key)
	r.Must("get "+key, err)
	support.Equal(r, "count of "+key, got.Count, 0)
	support.Equal(r, "pairs of "+key, len(got.Kvs), 0)
}

func put(r *support.Run, ctx context.Context, client *clientv3.Client, key, value string, options ...clientv3.OpOption) *clientv3.PutResponse {
	response, err := client.Put(ctx, key, value, options...)
	r.Must("put "+key, err)
	return response
}

func remove(r *support.Run, ctx context.Context, client *clientv3.Client, key string, options ...clientv3.OpOption) *clientv3.DeleteResponse {
	response, err := client.Delete(ctx, key, options...)
	r.Must("delete "+key, err)
	return response
}

// revision asks for the store's present revision.
func revision(r *support.Run, ctx context.Context, client *clientv3.Client) int64 {
	got, err := client.Get(ctx, r.Prefix+"/none")
	r.Must("get a missing key", err)
	return got.Header.Revision
}

// moves checks how far one operation moves the store's revision. A lease of an earlier scenario may end meanwhile and move
// it too: the attempt, which gives the revision before and after, is made three times. It must never move less.
func moves(r *support.Run, what string, want int64, attempt func() (before, after int64)) {
	var moved int64
	for range 3 {
		before, after := attempt()
		moved = after - before
		r.That(moved >= want, "%s: revision %d, then %d", what, before, after)
		if moved == want {
			return
		}
	}
	r.Fail("%s: the revision moved by %d, and in none of three attempts by %d", what, moved, want)
}

// refused expects this error of the server.
func refused(r *support.Run, what string, err, want error) {
	if !errors.Is(err, want) {
		r.Fail("%s: want %q, got %v", what, want, err)
	}
}

// keys of pairs, in their order.
func keys(pairs []*mvccpb.KeyValue) []string {
	names := []string{}
	for _, pair := range pairs {
		names = append(names, string(pair.Key))
	}
	return names
}

// grant makes a lease that nobody renews.
func grant(r *support.Run, ctx context.Context, client *clientv3.Client, seconds int64) clientv3.LeaseID {
	lease, err := client.Grant(ctx, seconds)
	r.Must("grant", err)
	return lease.ID
}

// keep has the client renew a lease until the function that it returns is called.
func keep(r *support.Run, client *clientv3.Client, lease clientv3.LeaseID) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	renewals, err := client.KeepAlive(ctx, lease)
	r.Must("keep alive", err)
	go func() {
		for range renewals {
		}
	}()
	return cancel
}

// watching collects a watch's events one by one, so that how a server cuts them into responses does not matter.
type watching struct {
	events <-chan *clientv3.Event
	ended  <-chan error
	cancel func()
}

// watch starts a watch and returns when the server has confirmed it.
func watch(r *support.Run, client *clientv3.Client, key string, options ...clientv3.OpOption) watching {
	ctx, cancel := context.WithCancel(r.Context())
	responses := client.Watch(ctx, key, append(options, clientv3.WithCreatedNotify())...)
	first := support.Next(r, 10*time.Second, "confirmation of the watch on "+key, responses)
	r.Must("watch "+key, first.Err())
	r.That(first.Created, "the watch on %s began with %+v", key, first)
	events, ended := make(chan *clientv3.Event, 4096), make(chan error, 1)
	go func() {
		defer close(events)
		for response := range responses {
			for _, event := range response.Events {
				events <- event
			}
			if err := response.Err(); err != nil {
				ended <- err
			}
		}
	}()
	return watching{events, ended, cancel}
}

// next takes the watch's next event.
func (w watching) next(r *support.Run, what string) *clientv3.Event {
	select {
	case event, open := <-w.events:
		if open {
			return event
		}
		select {
		case err := <-w.ended:
			r.Fail("%s: the watch was ended: %v", what, err)
		default:
			r.Fail("%s: the watch was ended", what)
		}
	case <-time.After(10 * time.Second):
		r.Fail("%s: no event within 10 s", what)
	}
	panic("unreachable")
}

// nextPut expects a put of this key with this value and gives the pair.
func (w watching) nextPut(r *support.Run, key, value string) *mvccpb.KeyValue {
	event := w.next(r, "put of "+key)
	support.Equal(r, "event", event.Type.String()+" "+string(event.Kv.Key)+" "+string(event.Kv.Value), "PUT "+key+" "+value)
	return event.Kv
}

// nextDelete expects a delete of this key and gives the pair, which has its revision.
func (w watching) nextDelete(r *support.Run, key string) *mvccpb.KeyValue {
	event := w.next(r, "delete of "+key)
	support.Equal(r, "event", event.Type.String()+" "+string(event.Kv.Key), "DELETE "+key)
	support.Equal(r, "value of the delete", len(event.Kv.Value), 0)
	return event.Kv
}

func pairText(pair *mvccpb.KeyValue) string {
	return fmt.Sprintf("%s=%s create %d mod %d version %d lease %d", pair.Key, pair.Value, pair.CreateRevision, pair.ModRevision, pair.Version, pair.Lease)
}
