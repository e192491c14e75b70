package clientv3

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["lock"] = lock }

func lock(r *support.Run) {
	name := r.Prefix + "/lock"
	one, two := session(r, connect(r, r.Address)), session(r, connect(r, r.Address))
	first, second := concurrency.NewMutex(one, name), concurrency.NewMutex(two, name)
	waitFor := func(mutex *concurrency.Mutex) <-chan error {
		held := make(chan error, 1)
		go func() { held <- mutex.Lock(r.Context()) }()
		return held
	}

	r.Step("acquire", func(ctx context.Context) { r.Must("lock", first.Lock(ctx)) })
	r.Step("refused", func(ctx context.Context) {
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		err := second.Lock(short)
		r.That(errors.Is(err, context.DeadlineExceeded), "lock: %v", err)
		r.That(errors.Is(second.TryLock(ctx), concurrency.ErrLocked), "try lock did not say that it is locked")
	})
	r.Step("passed", func(ctx context.Context) {
		held := waitFor(second)
		support.Silent(r, 200*time.Millisecond, "lock of B", held)
		r.Must("unlock", first.Unlock(ctx))
		r.Must("lock of B", support.Next(r, 2*time.Second, "lock of B", held))
	})
	r.Step("died", func(ctx context.Context) {
		held := waitFor(first)
		support.Silent(r, 200*time.Millisecond, "lock of A", held)
		_, err := two.Client().Revoke(ctx, two.Lease())
		r.Must("revoke", err)
		r.Must("lock of A", support.Next(r, 4*time.Second, "lock of A", held))
		r.Must("unlock", first.Unlock(ctx))
	})
	r.Step("counter", func(ctx context.Context) {
		key := r.Prefix + "/counter"
		put(r, ctx, one.Client(), key, "0")
		finished := make(chan error, 3)
		for range 3 {
			own := session(r, connect(r, r.Address))
			go func() { finished <- count(ctx, own, name, key) }()
		}
		for range 3 {
			r.Must("a counting client", support.Next(r, 20*time.Second, "a counting client", finished))
		}
		support.Equal(r, "counter", string(get(r, ctx, one.Client(), key).Value), "30")
	})
}

// count adds one to the counter, ten times, each under the lock.
func count(ctx context.Context, session *concurrency.Session, name, key string) error {
	mutex := concurrency.NewMutex(session, name)
	for range 10 {
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		got, err := session.Client().Get(ctx, key)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(got.Kvs[0].Value))
		if err != nil {
			return err
		}
		if _, err := session.Client().Put(ctx, key, strconv.Itoa(number+1)); err != nil {
			return err
		}
		if err := mutex.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}
