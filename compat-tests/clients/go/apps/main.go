// Applications on etcd as service frameworks make them, in one program:
//
//	compat-apps FRAMEWORK provider|consumer NAME ADDRESS PORT LEASE_MS
//
// What it says on standard output is told in compat-tests/src/applications/mod.rs; what its libraries log goes to standard error.
// It is no part of compat-go: go-zero handles signals for every program that it is linked into.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// application is one process: a provider that serves at a port of loopback, or a consumer.
type application struct {
	name    string
	address string // the registry: host:port
	port    int    // a consumer has none
	lease   time.Duration
}

// framework plays both; each function returns when the process was asked to stop and has done what the framework then does.
type framework struct {
	provide func(application) error
	consume func(application) error
}

var frameworks = map[string]framework{
	"go-zero":     {provide: goZeroProvider, consume: goZeroConsumer},
	"kratos":      {provide: kratosProvider, consume: kratosConsumer},
	"kitex-etcd":  {provide: kitexProvider, consume: kitexConsumer},
	"grpc-naming": {provide: namingProvider, consume: namingConsumer},
}

// stopped is what a process ends with that SIGTERM ended in order.
const stopped = 128 + 15

func main() {
	if len(os.Args) != 7 {
		usage()
	}
	chosen, known := frameworks[os.Args[1]]
	if !known {
		usage()
	}
	port, err := strconv.Atoi(os.Args[5])
	if err != nil {
		usage()
	}
	lease, err := strconv.Atoi(os.Args[6])
	if err != nil {
		usage()
	}
	one := application{name: os.Args[3], address: os.Args[4], port: port, lease: time.Duration(lease) * time.Millisecond}
	play := map[string]func(application) error{"provider": chosen.provide, "consumer": chosen.consume}[os.Args[2]]
	if play == nil {
		usage()
	}
	quiet()
	if err := play(one); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(stopped)
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: compat-apps FRAMEWORK provider|consumer NAME ADDRESS PORT LEASE_MS")
	os.Exit(2)
}
