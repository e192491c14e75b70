package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"time"

	"github.com/go-kratos/kratos/v2"
	"github.com/go-kratos/kratos/v2/log"
	"github.com/go-kratos/kratos/v2/registry"
	kratosgrpc "github.com/go-kratos/kratos/v2/transport/grpc"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const kratosService = "kratos-greeter"

// kratosProvider is an application of Kratos with its grpc server and a registrar.
func kratosProvider(a application) error {
	log.SetLogger(log.NewStdLogger(io.Discard))
	client, err := dial(a)
	if err != nil {
		return err
	}
	server := kratosgrpc.NewServer(kratosgrpc.Address(a.own()), kratosgrpc.Options(grpc.ChainUnaryInterceptor(named(a.name))))
	app := kratos.New(kratos.ID(a.name), kratos.Name(kratosService), kratos.Version("v1"),
		kratos.Server(server), kratos.Registrar(newKratosEtcd(client, a.lease)),
		kratos.AfterStart(func(context.Context) error {
			say("ready")
			return nil
		}))
	return app.Run()
}

// kratosConsumer calls by Kratos's own discovery, and follows the list beside it.
func kratosConsumer(a application) error {
	log.SetLogger(log.NewStdLogger(io.Discard))
	end := term()
	client, err := dial(a)
	if err != nil {
		return err
	}
	discovery := newKratosEtcd(client, a.lease)
	watcher, err := discovery.Watch(end, kratosService)
	if err != nil {
		return err
	}
	go func() {
		for end.Err() == nil {
			instances, err := watcher.Next()
			if err != nil {
				// Kratos's resolver waits so long, too.
				complain("watch", err)
				pause(end, time.Second)
				continue
			}
			list("watch", grpcAddresses(instances))
		}
	}()
	conn, err := kratosgrpc.DialInsecure(end, kratosgrpc.WithEndpoint("discovery:///"+kratosService),
		kratosgrpc.WithDiscovery(discovery), kratosgrpc.WithTimeout(callLimit), kratosgrpc.WithPrintDiscoveryDebugLog(false))
	if err != nil {
		return err
	}
	say("ready")
	caller(end, "discovery", conn)
	return nil
}

func grpcAddresses(instances []*registry.ServiceInstance) []string {
	all := []string{}
	for _, instance := range instances {
		for _, endpoint := range instance.Endpoints {
			if at, err := url.Parse(endpoint); err == nil && at.Scheme == "grpc" {
				all = append(all, at.Host)
			}
		}
	}
	return all
}

// kratosEtcd is a registry for Kratos that asks etcd for what Kratos's contrib/registry/etcd asks, call by call; that module itself
// cannot be had from the Go module proxy.
type kratosEtcd struct {
	client *clientv3.Client
	lease  time.Duration
	silent context.CancelFunc
}

const (
	kratosRoot    = "/microservices"
	kratosRetries = 5
	kratosWaits   = 3 * time.Second
)

func newKratosEtcd(client *clientv3.Client, lease time.Duration) *kratosEtcd {
	return &kratosEtcd{client: client, lease: lease}
}

func (k *kratosEtcd) key(service *registry.ServiceInstance) string {
	return kratosRoot + "/" + service.Name + "/" + service.ID
}

func (k *kratosEtcd) Register(ctx context.Context, service *registry.ServiceInstance) error {
	value, err := json.Marshal(service)
	if err != nil {
		return err
	}
	lease, err := k.put(ctx, k.key(service), string(value))
	if err != nil {
		return err
	}
	beating, silent := context.WithCancel(context.Background())
	k.silent = silent
	go k.beat(beating, lease, k.key(service), string(value))
	return nil
}

func (k *kratosEtcd) put(ctx context.Context, key, value string) (clientv3.LeaseID, error) {
	lease, err := k.client.Grant(ctx, int64(k.lease.Seconds()))
	if err != nil {
		return clientv3.NoLease, err
	}
	_, err = k.client.Put(ctx, key, value, clientv3.WithLease(lease.ID))
	return lease.ID, err
}

// beat renews the lease; when it is lost it registers again, a few times, and gives up for good.
func (k *kratosEtcd) beat(ctx context.Context, lease clientv3.LeaseID, key, value string) {
	alive, err := k.client.KeepAlive(ctx, lease)
	for {
		if err == nil {
			for range alive {
			}
		}
		for try := 0; ; try++ {
			if ctx.Err() != nil {
				return
			}
			if try == kratosRetries {
				complain("heartbeat", err)
				return
			}
			limited, cancel := context.WithTimeout(ctx, kratosWaits)
			lease, err = k.put(limited, key, value)
			cancel()
			if err != nil {
				continue
			}
			if alive, err = k.client.KeepAlive(ctx, lease); err == nil {
				break
			}
			pause(ctx, time.Second)
		}
	}
}

func (k *kratosEtcd) Deregister(ctx context.Context, service *registry.ServiceInstance) error {
	if k.silent != nil {
		k.silent()
	}
	_, err := k.client.Delete(ctx, k.key(service))
	return err
}

func (k *kratosEtcd) GetService(ctx context.Context, name string) ([]*registry.ServiceInstance, error) {
	found, err := k.client.Get(ctx, kratosRoot+"/"+name, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	instances := []*registry.ServiceInstance{}
	for _, pair := range found.Kvs {
		var one registry.ServiceInstance
		if err := json.Unmarshal(pair.Value, &one); err != nil {
			return nil, err
		}
		if one.Name == name {
			instances = append(instances, &one)
		}
	}
	return instances, nil
}

func (k *kratosEtcd) Watch(ctx context.Context, name string) (registry.Watcher, error) {
	watcher := &kratosWatcher{registry: k, service: name, first: true}
	watcher.context, watcher.cancel = context.WithCancel(ctx)
	return watcher, watcher.again()
}

// kratosWatcher asks for the whole list after each response of a watch that sends keys alone.
type kratosWatcher struct {
	registry  *kratosEtcd
	service   string
	first     bool
	context   context.Context
	cancel    context.CancelFunc
	watcher   clientv3.Watcher
	responses clientv3.WatchChan
}

func (w *kratosWatcher) again() error {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
	w.watcher = clientv3.NewWatcher(w.registry.client)
	w.responses = w.watcher.Watch(w.context, kratosRoot+"/"+w.service, clientv3.WithPrefix(), clientv3.WithRev(0), clientv3.WithKeysOnly())
	return w.watcher.RequestProgress(w.context)
}

func (w *kratosWatcher) Next() ([]*registry.ServiceInstance, error) {
	if w.first {
		w.first = false
		return w.registry.GetService(w.context, w.service)
	}
	select {
	case <-w.context.Done():
		return nil, w.context.Err()
	case response, open := <-w.responses:
		if !open || response.Err() != nil {
			pause(w.context, time.Second)
			if err := w.again(); err != nil {
				return nil, err
			}
		}
		return w.registry.GetService(w.context, w.service)
	}
}

func (w *kratosWatcher) Stop() error {
	w.cancel()
	return w.watcher.Close()
}
