package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/binarylog"
	binlogpb "google.golang.org/grpc/binarylog/grpc_binarylog_v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var output sync.Mutex

// say is one line of the report.
func say(words ...any) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(words...)
}

// list reports the providers that a framework gives, by address.
func list(how string, addresses []string) {
	ports := map[string]bool{}
	for _, address := range addresses {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			port = address
		}
		ports[port] = true
	}
	sorted := make([]string, 0, len(ports))
	for port := range ports {
		sorted = append(sorted, port)
	}
	sort.Strings(sorted)
	say("list", how, strings.Join(sorted, ","))
}

// writes counts what the process writes into the registry, in the words of grpc's own log of calls: libraries make their etcd
// clients themselves, and take no interceptor. The bench sets GRPC_BINARY_LOG_FILTER, without which grpc keeps no log.
type writes struct {
	lock  sync.Mutex
	calls map[uint64]string
}

var counted = map[string]bool{
	"/etcdserverpb.KV/Put":            true,
	"/etcdserverpb.KV/Txn":            true,
	"/etcdserverpb.KV/DeleteRange":    true,
	"/etcdserverpb.Lease/LeaseGrant":  true,
	"/etcdserverpb.Lease/LeaseRevoke": true,
}

func init() { binarylog.SetSink(&writes{calls: map[uint64]string{}}) }

func (w *writes) Write(entry *binlogpb.GrpcLogEntry) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	switch entry.Type {
	case binlogpb.GrpcLogEntry_EVENT_TYPE_CLIENT_HEADER:
		if method := entry.GetClientHeader().GetMethodName(); counted[method] {
			w.calls[entry.CallId] = method[strings.LastIndex(method, "/")+1:]
		}
	case binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_TRAILER:
		call, one := w.calls[entry.CallId]
		delete(w.calls, entry.CallId)
		if one && entry.GetTrailer().GetStatusCode() == 0 {
			say("wrote", call)
		}
	case binlogpb.GrpcLogEntry_EVENT_TYPE_CANCEL:
		delete(w.calls, entry.CallId)
	}
	return nil
}

func (w *writes) Close() error { return nil }

// term ends with SIGTERM.
func term() context.Context {
	ended, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	return ended
}

// nameHeader carries the name of the provider that answered.
const nameHeader = "provider-name"

// named has a server's answers say whose they are.
func named(name string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs(nameHeader, name))
		return handle(ctx, request)
	}
}

func (a application) own() string { return fmt.Sprintf("127.0.0.1:%d", a.port) }

// serve answers calls until the process ends.
func serve(a application) error {
	listener, err := net.Listen("tcp", a.own())
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(named(a.name)))
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	return nil
}

const (
	callEvery = 100 * time.Millisecond
	callLimit = 2 * time.Second
)

// caller calls until the context ends, and reports each call.
func caller(ctx context.Context, how string, conn *grpc.ClientConn) {
	for ctx.Err() == nil {
		if failure := call(ctx, how, conn); failure != nil && ctx.Err() == nil {
			say("failed", how, code(failure))
		}
		pause(ctx, callEvery)
	}
}

func call(ctx context.Context, how string, conn *grpc.ClientConn) error {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var header metadata.MD
	if _, err := healthpb.NewHealthClient(conn).Check(limited, &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
		return err
	}
	say("call", how, strings.Join(header.Get(nameHeader), ","))
	return nil
}

func code(err error) codes.Code { return status.Code(err) }

func pause(ctx context.Context, span time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(span):
	}
}

func complain(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
}
