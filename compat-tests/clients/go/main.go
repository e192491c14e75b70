// A Go application on etcd: clientv3, its naming package with the grpc resolver, and its concurrency package, all
// unmodified. It does what such an application relies on, prints a line for each thing, and fails at the first that
// is not so.
//
//	go run . -endpoints 127.0.0.1:2379 [-prefix orders-grpc]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
)

// How long one step may take.
const step = 10 * time.Second

type suite struct {
	ctx     context.Context
	client  *clientv3.Client
	target  string
	scratch string
}

func main() {
	addresses := flag.String("endpoints", "127.0.0.1:2379", "etcd endpoints, separated by commas")
	target := flag.String("prefix", "orders-grpc", "grpc target to register under")
	scratch := flag.String("scratch", fmt.Sprintf("scratch-%d", os.Getpid()), "prefix of other keys")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:        strings.Split(*addresses, ","),
		DialTimeout:      step,
		RejectOldCluster: true,
		AutoSyncInterval: 2 * time.Second,
		Logger:           zap.NewNop(),
	})
	if err != nil {
		fail("connect", err)
	}
	defer client.Close()
	s := &suite{ctx: context.Background(), client: client, target: *target, scratch: *scratch}
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"sync finds the endpoint", s.sync},
		{"put, get, delete", s.keys},
		{"errors are typed", s.errors},
		{"transaction", s.transaction},
		{"watch resumes", s.watch},
		{"lease", s.lease},
		{"mutex", s.mutex},
		{"election", s.election},
		{"resolver follows the registrations", s.resolver},
	} {
		ctx, cancel := context.WithTimeout(s.ctx, 6*step)
		err := check.run(ctx)
		cancel()
		if err != nil {
			fail(check.name, err)
		}
		fmt.Println("ok", check.name)
	}
}

func fail(name string, err error) {
	fmt.Printf("failed %s: %v\n", name, err)
	os.Exit(1)
}

func (s *suite) key(name string) string { return s.scratch + "/" + name }

func (s *suite) sync(ctx context.Context) error {
	before := s.client.Endpoints()
	if err := s.client.Sync(ctx); err != nil {
		return err
	}
	if len(s.client.Endpoints()) == 0 {
		return fmt.Errorf("no endpoints, had %v", before)
	}
	status, err := s.client.Status(ctx, before[0])
	if err != nil {
		return err
	}
	if status.Header.ClusterId == 0 || status.Leader == 0 || status.Version == "" {
		return fmt.Errorf("status is incomplete: %v", status)
	}
	return nil
}

func (s *suite) keys(ctx context.Context) error {
	first, err := s.client.Put(ctx, s.key("a"), "1")
	if err != nil {
		return err
	}
	second, err := s.client.Put(ctx, s.key("a"), "2", clientv3.WithPrevKV())
	if err != nil {
		return err
	}
	if second.Header.Revision <= first.Header.Revision || string(second.PrevKv.Value) != "1" {
		return fmt.Errorf("second put: %v after %v", second, first)
	}
	if _, err := s.client.Put(ctx, s.key("b"), "3"); err != nil {
		return err
	}
	got, err := s.client.Get(ctx, s.key(""), clientv3.WithPrefix(), clientv3.WithLimit(1),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
	if err != nil {
		return err
	}
	if got.Count != 2 || !got.More || string(got.Kvs[0].Key) != s.key("b") {
		return fmt.Errorf("sorted and cut: %v", got)
	}
	past, err := s.client.Get(ctx, s.key("a"), clientv3.WithRev(first.Header.Revision))
	if err != nil {
		return err
	}
	if len(past.Kvs) != 1 || string(past.Kvs[0].Value) != "1" {
		return fmt.Errorf("the past: %v", past)
	}
	gone, err := s.client.Delete(ctx, s.key(""), clientv3.WithPrefix(), clientv3.WithPrevKV())
	if err != nil {
		return err
	}
	if gone.Deleted != 2 || len(gone.PrevKvs) != 2 {
		return fmt.Errorf("deleted: %v", gone)
	}
	return nil
}

func (s *suite) errors(ctx context.Context) error {
	expect := func(want, got error) error {
		if !errors.Is(got, want) {
			return fmt.Errorf("want %v, got %v", want, got)
		}
		return nil
	}
	_, err := s.client.Put(ctx, s.key("a"), "1", clientv3.WithLease(987654321))
	if err := expect(rpctypes.ErrLeaseNotFound, err); err != nil {
		return err
	}
	_, err = s.client.Revoke(ctx, 987654321)
	if err := expect(rpctypes.ErrLeaseNotFound, err); err != nil {
		return err
	}
	_, err = s.client.Get(ctx, s.key("a"), clientv3.WithRev(1<<60))
	if err := expect(rpctypes.ErrFutureRev, err); err != nil {
		return err
	}
	_, err = s.client.Put(ctx, s.key("a"), strings.Repeat("x", 1536*1024))
	if err := expect(rpctypes.ErrRequestTooLarge, err); err != nil {
		return err
	}
	_, err = s.client.Put(ctx, "", "1")
	return expect(rpctypes.ErrEmptyKey, err)
}

func (s *suite) transaction(ctx context.Context) error {
	key := s.key("txn")
	create := func() (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, "mine")).Else(clientv3.OpGet(key)).Commit()
	}
	first, err := create()
	if err != nil {
		return err
	}
	second, err := create()
	if err != nil {
		return err
	}
	if !first.Succeeded || second.Succeeded {
		return fmt.Errorf("created %v then %v", first.Succeeded, second.Succeeded)
	}
	found := second.Responses[0].GetResponseRange().Kvs
	if len(found) != 1 || found[0].CreateRevision != first.Header.Revision {
		return fmt.Errorf("else found %v, created at %d", found, first.Header.Revision)
	}
	_, err = s.client.Delete(ctx, key)
	return err
}

func (s *suite) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := s.key("watched/")
	live := s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	created := <-live
	if !created.Created {
		return fmt.Errorf("not created: %v", created)
	}
	put, err := s.client.Put(ctx, prefix+"a", "1")
	if err != nil {
		return err
	}
	if _, err := s.client.Delete(ctx, prefix+"a"); err != nil {
		return err
	}
	var seen []string
	for len(seen) < 2 {
		select {
		case response := <-live:
			if err := response.Err(); err != nil {
				return err
			}
			for _, event := range response.Events {
				seen = append(seen, fmt.Sprintf("%s %s", event.Type, event.Kv.Key))
			}
		case <-time.After(step):
			return fmt.Errorf("only saw %v", seen)
		}
	}
	replayed := <-s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(put.Header.Revision))
	if err := replayed.Err(); err != nil {
		return err
	}
	if len(replayed.Events) == 0 || replayed.Events[0].Kv.ModRevision != put.Header.Revision {
		return fmt.Errorf("replayed %v from %d", replayed.Events, put.Header.Revision)
	}
	return nil
}

func (s *suite) lease(ctx context.Context) error {
	lease, err := s.client.Grant(ctx, 5)
	if err != nil {
		return err
	}
	key := s.key("leased")
	if _, err := s.client.Put(ctx, key, "1", clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	alive, err := s.client.KeepAliveOnce(ctx, lease.ID)
	if err != nil {
		return err
	}
	ttl, err := s.client.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
	if err != nil {
		return err
	}
	if alive.TTL != 5 || ttl.GrantedTTL != 5 || len(ttl.Keys) != 1 || string(ttl.Keys[0]) != key {
		return fmt.Errorf("alive %v, time to live %v", alive, ttl)
	}
	if _, err := s.client.Revoke(ctx, lease.ID); err != nil {
		return err
	}
	if _, err := s.client.KeepAliveOnce(ctx, lease.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("a revoked lease is kept alive: %v", err)
	}
	gone, err := s.client.TimeToLive(ctx, lease.ID)
	if err != nil {
		return err
	}
	left, err := s.client.Get(ctx, key)
	if err != nil {
		return err
	}
	if gone.TTL != -1 || left.Count != 0 {
		return fmt.Errorf("after the revoke: %v, %v", gone, left)
	}
	return nil
}

func (s *suite) mutex(ctx context.Context) error {
	one, err := concurrency.NewSession(s.client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	two, err := concurrency.NewSession(s.client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer two.Close()
	first, second := concurrency.NewMutex(one, s.key("lock")), concurrency.NewMutex(two, s.key("lock"))
	if err := first.Lock(ctx); err != nil {
		return err
	}
	if err := second.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		return fmt.Errorf("the second holder got: %v", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- second.Lock(ctx) }()
	time.Sleep(200 * time.Millisecond)
	if err := one.Close(); err != nil {
		return err
	}
	if err := <-waiting; err != nil {
		return err
	}
	return second.Unlock(ctx)
}

func (s *suite) election(ctx context.Context) error {
	session, err := concurrency.NewSession(s.client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer session.Close()
	election := concurrency.NewElection(session, s.key("election"))
	if err := election.Campaign(ctx, "me"); err != nil {
		return err
	}
	leader, err := election.Leader(ctx)
	if err != nil {
		return err
	}
	if string(leader.Kvs[0].Value) != "me" {
		return fmt.Errorf("leader: %v", leader)
	}
	return election.Resign(ctx)
}

// A grpc server that says where it is, by being there.
func server() (string, func(), error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), server.Stop, nil
}

func (s *suite) resolver(ctx context.Context) error {
	manager, err := endpoints.NewManager(s.client, s.target)
	if err != nil {
		return err
	}
	lease, err := s.client.Grant(ctx, 10)
	if err != nil {
		return err
	}
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	go func() {
		for range alive {
		}
	}()
	var addresses []string
	for range 3 {
		address, stop, err := server()
		if err != nil {
			return err
		}
		defer stop()
		addresses = append(addresses, address)
	}
	sort.Strings(addresses)
	add := func(address string) error {
		return manager.AddEndpoint(ctx, s.target+"/"+address, endpoints.Endpoint{Addr: address}, clientv3.WithLease(lease.ID))
	}
	if err := add(addresses[0]); err != nil {
		return err
	}
	builder, err := resolver.NewBuilder(s.client)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("etcd:///"+s.target, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := reaches(ctx, conn, addresses[:1]); err != nil {
		return err
	}
	for _, address := range addresses[1:] {
		if err := add(address); err != nil {
			return err
		}
	}
	if err := reaches(ctx, conn, addresses); err != nil {
		return err
	}
	if err := manager.DeleteEndpoint(ctx, s.target+"/"+addresses[0]); err != nil {
		return err
	}
	if err := reaches(ctx, conn, addresses[1:]); err != nil {
		return err
	}
	listed, err := manager.List(ctx)
	if err != nil {
		return err
	}
	if len(listed) != 2 {
		return fmt.Errorf("listed %v", listed)
	}
	if _, err := s.client.Revoke(ctx, lease.ID); err != nil {
		return err
	}
	listed, err = manager.List(ctx)
	if err != nil {
		return err
	}
	if len(listed) != 0 {
		return fmt.Errorf("left after the revoke: %v", listed)
	}
	return nil
}

// reaches waits until calls go to exactly these servers.
func reaches(ctx context.Context, conn *grpc.ClientConn, want []string) error {
	var got []string
	for deadline := time.Now().Add(step); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		seen := map[string]bool{}
		for range 4 * len(want) {
			var at peer.Peer
			call, cancel := context.WithTimeout(ctx, step)
			_, err := healthpb.NewHealthClient(conn).Check(call, &healthpb.HealthCheckRequest{}, grpc.Peer(&at), grpc.WaitForReady(true))
			cancel()
			if err == nil {
				seen[at.Addr.String()] = true
			}
		}
		got = got[:0]
		for address := range seen {
			got = append(got, address)
		}
		sort.Strings(got)
		if strings.Join(got, " ") == strings.Join(want, " ") {
			return nil
		}
	}
	return fmt.Errorf("calls reach %v, want %v", got, want)
}
