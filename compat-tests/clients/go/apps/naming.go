package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// target is what the bench lets Causeway's layout claim.
const target = "orders-grpc"

const dials = 5 * time.Second

func dial(a application) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{a.address}, DialTimeout: dials})
}

// namingProvider keeps its endpoint under a lease, and makes both anew when the lease was lost.
func namingProvider(a application) error {
	end := term()
	if err := serve(a); err != nil {
		return err
	}
	client, err := dial(a)
	if err != nil {
		return err
	}
	manager, err := endpoints.NewManager(client, target)
	if err != nil {
		return err
	}
	key := target + "/" + a.own()
	register := func(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
		lease, err := client.Grant(ctx, int64(a.lease.Seconds()))
		if err != nil {
			return nil, err
		}
		endpoint := endpoints.Endpoint{Addr: a.own(), Metadata: map[string]any{"name": a.name}}
		if err := manager.AddEndpoint(ctx, key, endpoint, clientv3.WithLease(lease.ID)); err != nil {
			return nil, err
		}
		return client.KeepAlive(ctx, lease.ID)
	}
	alive, err := register(end)
	if err != nil {
		return err
	}
	say("ready")
	for end.Err() == nil {
		if err == nil {
			for range alive {
			}
		} else {
			complain("register again", err)
			pause(end, time.Second)
		}
		if end.Err() == nil {
			alive, err = register(end)
		}
	}
	last, cancel := context.WithTimeout(context.Background(), revokes)
	defer cancel()
	return manager.DeleteEndpoint(last, key)
}

// namingConsumer follows the endpoints by the manager's watch, and calls by the resolver.
func namingConsumer(a application) error {
	end := term()
	client, err := dial(a)
	if err != nil {
		return err
	}
	manager, err := endpoints.NewManager(client, target)
	if err != nil {
		return err
	}
	updates, err := manager.NewWatchChannel(end)
	if err != nil {
		return err
	}
	builder, err := resolver.NewBuilder(client)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("etcd:///"+target, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(roundRobin))
	if err != nil {
		return err
	}
	go func() {
		known := map[string]string{}
		for batch := range updates {
			for _, update := range batch {
				if update.Op == endpoints.Delete {
					delete(known, update.Key)
				} else {
					known[update.Key] = update.Endpoint.Addr
				}
			}
			all := []string{}
			for _, address := range known {
				all = append(all, address)
			}
			list("watch", all)
		}
		if end.Err() == nil {
			say("failed watch ended")
		}
	}()
	say("ready")
	caller(end, "resolver", conn)
	return nil
}
