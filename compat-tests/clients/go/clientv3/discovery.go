package clientv3

import (
	"context"
	"fmt"
	"net"
	"sort"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["discovery"] = discovery }

// instance is a grpc server on loopback, registered by a client of its own under a lease of its own.
type instance struct {
	address string
	manager endpoints.Manager
	client  *clientv3.Client
	lease   clientv3.LeaseID
	silence func() // stops the renewals
}

func discovery(r *support.Run) {
	reading := connect(r, r.Address)
	reader, err := endpoints.NewManager(reading, r.Prefix)
	r.Must("manager", err)
	follower := follow(r, reader)
	var all []*instance

	r.Step("empty", func(ctx context.Context) {
		listed, err := reader.List(ctx)
		r.Must("list", err)
		support.Equal(r, "list", len(listed), 0)
	})
	r.Step("registered", func(ctx context.Context) {
		for range 3 {
			all = append(all, serve(r, ctx))
		}
		agree(r, ctx, reader, follower, 3*time.Second, all)
		for _, one := range all {
			pair := get(r, ctx, reading, r.Prefix+"/"+one.address)
			support.Equal(r, "value", string(pair.Value), fmt.Sprintf(`{"Op":0,"Addr":"%s","Metadata":null}`, one.address))
			support.Equal(r, "lease", clientv3.LeaseID(pair.Lease), one.lease)
		}
	})
	r.Step("called", func(ctx context.Context) {
		builder, err := resolver.NewBuilder(reading)
		r.Must("resolver", err)
		conn, err := grpc.NewClient("etcd:///"+r.Prefix, grpc.WithResolvers(builder),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`))
		r.Must("grpc client", err)
		r.Cleanup(func() { _ = conn.Close() })
		called(r, ctx, conn, all)
	})
	r.Step("left", func(ctx context.Context) {
		_, err := all[0].client.Revoke(ctx, all[0].lease)
		r.Must("revoke", err)
		all = all[1:]
		agree(r, ctx, reader, follower, 2*time.Second, all)
	})
	r.Step("updated", func(ctx context.Context) {
		all[0].register(r, ctx, map[string]any{"weight": "7"})
		expected := all[0].address + " map[weight:7]"
		r.Within(3*time.Second, "the new metadata", func() (bool, string) {
			listed, err := reader.List(ctx)
			r.Must("list", err)
			seen := endpointTexts(listed)
			told := follower.now(r)
			return contains(seen, expected) && contains(told, expected), fmt.Sprint(seen, told)
		})
	})
	r.Step("died", func(ctx context.Context) {
		all = append(all, serve(r, ctx), serve(r, ctx))
		agree(r, ctx, reader, follower, 3*time.Second, all)
		all[3].silence()
		all = all[:3]
		agree(r, ctx, reader, follower, 8*time.Second, all)
	})
	r.Step("all-left", func(ctx context.Context) {
		for _, one := range all {
			r.Must("delete the endpoint", one.manager.DeleteEndpoint(ctx, r.Prefix+"/"+one.address))
		}
		agree(r, ctx, reader, follower, 3*time.Second, nil)
	})
}

func serve(r *support.Run, ctx context.Context) *instance {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	r.Must("listen", err)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	r.Cleanup(server.Stop)
	client := connect(r, r.Address)
	manager, err := endpoints.NewManager(client, r.Prefix)
	r.Must("manager", err)
	one := &instance{address: listener.Addr().String(), manager: manager, client: client, lease: grant(r, ctx, client, 3)}
	one.silence = keep(r, client, one.lease)
	one.register(r, ctx, nil)
	return one
}

func (i *instance) register(r *support.Run, ctx context.Context, metadata any) {
	endpoint := endpoints.Endpoint{Addr: i.address, Metadata: metadata}
	r.Must("add the endpoint", i.manager.AddEndpoint(ctx, r.Prefix+"/"+i.address, endpoint, clientv3.WithLease(i.lease)))
}

// follower keeps what the manager's watch has told so far.
type follower struct {
	updates <-chan []*endpoints.Update
	known   endpoints.Key2EndpointMap
}

func follow(r *support.Run, manager endpoints.Manager) *follower {
	channel, err := manager.NewWatchChannel(r.Context())
	r.Must("watch of the endpoints", err)
	return &follower{channel, endpoints.Key2EndpointMap{}}
}

func (f *follower) now(r *support.Run) []string {
	for {
		select {
		case updates, open := <-f.updates:
			r.That(open, "the watch of the endpoints was ended")
			for _, update := range updates {
				if update.Op == endpoints.Delete {
					delete(f.known, update.Key)
				} else {
					f.known[update.Key] = update.Endpoint
				}
			}
		default:
			return endpointTexts(f.known)
		}
	}
}

// agree waits until a fresh list and the followed one both show exactly these instances.
func agree(r *support.Run, ctx context.Context, reader endpoints.Manager, follower *follower, limit time.Duration, want []*instance) {
	addresses := []string{}
	for _, one := range want {
		addresses = append(addresses, one.address)
	}
	sort.Strings(addresses)
	r.Within(limit, fmt.Sprint("list of ", addresses), func() (bool, string) {
		listed, err := reader.List(ctx)
		r.Must("list", err)
		fresh, told := endpointTexts(listed), follower.now(r)
		return sameAddresses(fresh, addresses) && sameAddresses(told, addresses), fmt.Sprintf("listed %v, told %v", fresh, told)
	})
}

func endpointTexts(of endpoints.Key2EndpointMap) []string {
	texts := []string{}
	for key, endpoint := range of {
		text := endpoint.Addr
		if endpoint.Metadata != nil {
			text += fmt.Sprint(" ", endpoint.Metadata)
		}
		if !strings.HasSuffix(key, "/"+endpoint.Addr) {
			text += " under " + key
		}
		texts = append(texts, text)
	}
	sort.Strings(texts)
	return texts
}

func sameAddresses(texts, addresses []string) bool {
	if len(texts) != len(addresses) {
		return false
	}
	for at, text := range texts {
		if first, _, _ := strings.Cut(text, " map["); first != addresses[at] {
			return false
		}
	}
	return true
}

func contains(texts []string, one string) bool {
	for _, text := range texts {
		if text == one {
			return true
		}
	}
	return false
}

// called makes calls until the balancer knows all instances, then expects each of them in every round.
func called(r *support.Run, ctx context.Context, conn *grpc.ClientConn, all []*instance) {
	call := func() string {
		var at peer.Peer
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&at), grpc.WaitForReady(true))
		r.Must("call", err)
		return at.Addr.String()
	}
	r.Within(5*time.Second, "calls to all instances", func() (bool, string) {
		reached := map[string]bool{}
		for range 2 * len(all) {
			reached[call()] = true
		}
		return len(reached) == len(all), fmt.Sprint(reached)
	})
	counted := map[string]int{}
	for range 10 * len(all) {
		counted[call()]++
	}
	for _, one := range all {
		support.Equal(r, "calls to "+one.address, counted[one.address], 10)
	}
}
