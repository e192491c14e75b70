package clientv3

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["election"] = election }

func election(r *support.Run) {
	name := r.Prefix + "/election"
	_, first := candidate(r, name)
	second, waiting := candidate(r, name)
	watcher := concurrency.NewElection(session(r, connect(r, r.Address)), name)
	elected := make(chan error, 1)
	leader := func(ctx context.Context, want string) {
		found, err := watcher.Leader(ctx)
		r.Must("leader", err)
		support.Equal(r, "leader's value", string(found.Kvs[0].Value), want)
	}

	r.Step("one", func(ctx context.Context) {
		r.Must("campaign", first.Campaign(ctx, "first"))
		go func() { elected <- waiting.Campaign(r.Context(), "second") }()
		support.Silent(r, 500*time.Millisecond, "campaign of the second", elected)
		leader(ctx, "first")
	})
	r.Step("proclaim", func(ctx context.Context) {
		observing, stop := context.WithCancel(ctx)
		defer stop()
		seen := watcher.Observe(observing)
		before := support.Next(r, 3*time.Second, "observer", seen)
		support.Equal(r, "observed", string(before.Kvs[0].Value), "first")
		r.Must("proclaim", first.Proclaim(ctx, "first again"))
		after := support.Next(r, 3*time.Second, "observer", seen)
		support.Equal(r, "observed", string(after.Kvs[0].Value), "first again")
		leader(ctx, "first again")
	})
	r.Step("resign", func(ctx context.Context) {
		r.Must("resign", first.Resign(ctx))
		r.Must("campaign of the second", support.Next(r, 3*time.Second, "campaign of the second", elected))
		leader(ctx, "second")
	})
	r.Step("last", func(ctx context.Context) {
		_, err := watcher.Leader(ctx)
		r.Must("leader", err)
		_, err = second.Client().Revoke(ctx, second.Lease())
		r.Must("revoke", err)
		r.Within(3*time.Second, "no leader", func() (bool, string) {
			_, err := watcher.Leader(ctx)
			return err == concurrency.ErrElectionNoLeader, "an answer that is no such error"
		})
	})
}

// session has a lease of ten seconds that the client renews until the program ends.
func session(r *support.Run, client *clientv3.Client) *concurrency.Session {
	one, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	r.Must("session", err)
	r.Cleanup(func() { _ = one.Close() })
	return one
}

func candidate(r *support.Run, name string) (*concurrency.Session, *concurrency.Election) {
	one := session(r, connect(r, r.Address))
	return one, concurrency.NewElection(one, name)
}
