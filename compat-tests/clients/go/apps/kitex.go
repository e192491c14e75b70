package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Kitex and its registry-etcd cannot be had from the Go module proxy. What follows asks etcd for what registry-etcd asks, call by
// call: a lease and a put, a look at its own key again and again, a range without a watch.
const (
	kitexPrefix  = "kitex/registry-etcd/"
	kitexService = "kitex-greeter"
	// kitexLooks stands for 30 s of registry-etcd.
	kitexLooks   = 5 * time.Second
	kitexRetries = 5
	// kitexResolves stands for the refresh of Kitex's resolver cache, 5 s.
	kitexResolves = 2 * time.Second
	kitexWaits    = 3 * time.Second
)

type kitexInstance struct {
	Network string            `json:"network"`
	Address string            `json:"address"`
	Weight  int               `json:"weight"`
	Tags    map[string]string `json:"tags"`
}

type kitexEtcd struct {
	client *clientv3.Client
	lease  time.Duration
	lock   sync.Mutex
	silent context.CancelFunc
}

func (k *kitexEtcd) put(key, value string) error {
	limited, cancel := context.WithTimeout(context.Background(), kitexWaits)
	defer cancel()
	lease, err := k.client.Grant(limited, int64(k.lease.Seconds()))
	if err != nil {
		return err
	}
	if _, err := k.client.Put(limited, key, value, clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	beating, silent := context.WithCancel(context.Background())
	alive, err := k.client.KeepAlive(beating, lease.ID)
	if err != nil {
		silent()
		return err
	}
	go func() {
		for range alive {
		}
	}()
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.silent != nil {
		k.silent()
	}
	k.silent = silent
	return nil
}

// look puts the key again where it is missing.
func (k *kitexEtcd) look(end context.Context, key, value string) {
	failed := 0
	for failed < kitexRetries {
		pause(end, kitexLooks)
		if end.Err() != nil {
			return
		}
		limited, cancel := context.WithTimeout(end, kitexWaits)
		found, err := k.client.Get(limited, key)
		cancel()
		if err == nil && len(found.Kvs) == 0 {
			err = k.put(key, value)
		}
		if err != nil {
			complain("look", err)
			failed++
			continue
		}
		failed = 0
	}
}

func kitexProvider(a application) error {
	end := term()
	if err := serve(a); err != nil {
		return err
	}
	client, err := dial(a)
	if err != nil {
		return err
	}
	key := kitexPrefix + kitexService + "/" + a.own()
	value, err := json.Marshal(kitexInstance{Network: "tcp", Address: a.own(), Weight: 10})
	if err != nil {
		return err
	}
	registry := &kitexEtcd{client: client, lease: a.lease}
	if err := registry.put(key, string(value)); err != nil {
		return err
	}
	go registry.look(end, key, string(value))
	say("ready")
	<-end.Done()
	limited, cancel := context.WithTimeout(context.Background(), kitexWaits)
	defer cancel()
	_, err = client.Delete(limited, key)
	return err
}

func kitexConsumer(a application) error {
	end := term()
	client, err := dial(a)
	if err != nil {
		return err
	}
	fed := manual.NewBuilderWithScheme("kitex")
	conn, err := grpc.NewClient("kitex:///"+kitexService, grpc.WithResolvers(fed),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(roundRobin))
	if err != nil {
		return err
	}
	fed.InitialState(resolver.State{})
	conn.Connect()
	// Kitex goes on with the instances that it had when a look fails or finds none.
	go poll(end, kitexResolves, func() {
		found, err := resolveKitex(end, client)
		if err != nil {
			complain("resolve", err)
			return
		}
		list("resolver", found)
		if len(found) > 0 {
			fed.UpdateState(resolver.State{Addresses: addresses(found)})
		}
	})
	say("ready")
	caller(end, "resolver", conn)
	return nil
}

func resolveKitex(ctx context.Context, client *clientv3.Client) ([]string, error) {
	limited, cancel := context.WithTimeout(ctx, kitexWaits)
	defer cancel()
	found, err := client.Get(limited, kitexPrefix+kitexService+"/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	all := []string{}
	for _, pair := range found.Kvs {
		var one kitexInstance
		if err := json.Unmarshal(pair.Value, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", pair.Key, err)
		}
		all = append(all, one.Address)
	}
	return all, nil
}
