package main

import (
	"context"
	"os"
	"time"

	"github.com/zeromicro/go-zero/core/discov"
	"github.com/zeromicro/go-zero/core/logx"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// goZeroKey is what the bench lets Causeway's layout claim.
const goZeroKey = "orders.rpc"

// revokes is how long a publisher has for its last word.
const revokes = 3 * time.Second

// quiet keeps go-zero's news out of the log; it listens for signals in every program that it is part of.
func quiet() {
	logx.DisableStat()
	logx.SetLevel(logx.ErrorLevel)
	logx.SetWriter(logx.NewWriter(os.Stderr))
}

// goZeroProvider publishes as zrpc servers do.
func goZeroProvider(a application) error {
	end := term()
	if err := serve(a); err != nil {
		return err
	}
	// Its leases last 10 s, whatever one would like.
	publisher := discov.NewPublisher([]string{a.address}, goZeroKey, a.own())
	if err := publisher.KeepAlive(); err != nil {
		return err
	}
	say("ready")
	<-end.Done()
	publisher.Stop()
	// It revokes in a goroutine of its own, and tells nobody when it has.
	time.Sleep(revokes)
	return nil
}

// goZeroConsumer subscribes, and feeds grpc with the addresses as zrpc's discov resolver does.
func goZeroConsumer(a application) error {
	end := term()
	subscriber, err := discov.NewSubscriber([]string{a.address}, goZeroKey)
	if err != nil {
		return err
	}
	fed := manual.NewBuilderWithScheme("discov")
	update := func() {
		values := subscriber.Values()
		list("subscriber", values)
		fed.UpdateState(resolver.State{Addresses: addresses(values)})
	}
	fed.InitialState(resolver.State{Addresses: addresses(subscriber.Values())})
	conn, err := grpc.NewClient("discov:///"+goZeroKey, grpc.WithResolvers(fed),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(roundRobin))
	if err != nil {
		return err
	}
	conn.Connect()
	subscriber.AddListener(update)
	update()
	say("ready")
	caller(end, "subscriber", conn)
	return nil
}

const roundRobin = `{"loadBalancingConfig": [{"round_robin":{}}]}`

func addresses(values []string) []resolver.Address {
	all := []resolver.Address{}
	for _, value := range values {
		all = append(all, resolver.Address{Addr: value})
	}
	return all
}

// poll asks for a list at an interval, as frameworks without a watch do.
func poll(ctx context.Context, every time.Duration, ask func()) {
	for ctx.Err() == nil {
		ask()
		pause(ctx, every)
	}
}
