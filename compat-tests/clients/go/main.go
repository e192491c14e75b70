// Real etcd (server, proxy, etcdctl) and the Go clients of the test bench in one program, so that what they share is
// built and linked once.
//
//	compat-go etcd ARGS…       the etcd server, `grpc-proxy start` among its commands
//	compat-go etcdctl ARGS…    etcd's command line client
//	compat-go etcdutl ARGS…    etcd's tool for database files: status, restore and hash of a snapshot
//	compat-go versions         `name version` of each library, from the build's own record
//	compat-go CLIENT SCENARIO ADDRESS PREFIX
//	                           one scenario of the client clientv3 or go-zookeeper against one server
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"causeway.dev/compat-tests/clients/go/clientv3"
	"causeway.dev/compat-tests/clients/go/gozookeeper"
	"causeway.dev/compat-tests/clients/go/support"
)

var clients = map[string]map[string]support.Scenario{
	"clientv3":     clientv3.Scenarios,
	"go-zookeeper": gozookeeper.Scenarios,
}

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
	case "etcd", "etcdctl", "etcdutl":
		// All read their arguments from os.Args, and from its beginning.
		os.Args = os.Args[1:]
		switch os.Args[0] {
		case "etcd":
			etcdmain.Main(os.Args)
		case "etcdctl":
			ctlv3.MustStart()
		default:
			databaseTool()
		}
	case "versions":
		versions()
	default:
		client(os.Args[1:])
	}
}

// What etcdutl's main does, which no package of it exports, for the commands that are used here.
func databaseTool() {
	root := &cobra.Command{Use: "etcdutl", SilenceUsage: true}
	root.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple", "output format")
	root.AddCommand(etcdutl.NewSnapshotCommand(), etcdutl.NewHashKVCommand())
	if root.Execute() != nil {
		os.Exit(1)
	}
}

func client(arguments []string) {
	if len(arguments) != 4 {
		usage()
	}
	scenario := clients[arguments[0]][arguments[1]]
	if scenario == nil {
		usage()
	}
	support.Start(scenario, arguments[1], arguments[2], arguments[3])
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: compat-go etcd|etcdctl|etcdutl ARGS… | versions | clientv3|go-zookeeper SCENARIO ADDRESS PREFIX")
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
