// Real etcd (server, proxy, etcdctl) and the Go clients of the test bench in one program, so that what they share is
// built and linked once.
//
//	compat-go etcd ARGS…       the etcd server, `grpc-proxy start` among its commands
//	compat-go etcdctl ARGS…    etcd's command line client
//	compat-go versions         `name version` of each library, from the build's own record
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

// What `versions` names, by module.
var named = []struct{ name, module string }{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"etcdctl", "go.etcd.io/etcd/etcdctl/v3"},
	{"clientv3", "go.etcd.io/etcd/client/v3"},
	{"go-zookeeper", "github.com/go-zookeeper/zk"},
	{"grpc-go", "google.golang.org/grpc"},
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "etcd", "etcdctl":
		// Both read their arguments from os.Args, and from its beginning.
		os.Args = os.Args[1:]
		if os.Args[0] == "etcd" {
			etcdmain.Main(os.Args)
		} else {
			ctlv3.MustStart()
		}
	case "versions":
		versions()
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: compat-go etcd|etcdctl ARGS… | versions")
	os.Exit(2)
}

func versions() {
	build, known := debug.ReadBuildInfo()
	if !known {
		fmt.Fprintln(os.Stderr, "compat-go: built without build info")
		os.Exit(1)
	}
	for _, entry := range named {
		for _, module := range build.Deps {
			if module.Path == entry.module {
				fmt.Println(entry.name, module.Version)
			}
		}
	}
	fmt.Println("go", runtime.Version())
}
