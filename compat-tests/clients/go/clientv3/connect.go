package clientv3

import (
	"context"
	"errors"
	"net"
	"regexp"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["connect"] = connectScenario }

var threeNumbers = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)

func connectScenario(r *support.Run) {
	client := connect(r, r.Address)
	var cluster uint64

	r.Step("status", func(ctx context.Context) {
		status, err := client.Status(ctx, client.Endpoints()[0])
		r.Must("status", err)
		r.That(threeNumbers.MatchString(status.Version), "version is %q", status.Version)
		r.That(status.Leader != 0, "leader is 0")
		header := status.Header
		r.That(header.ClusterId != 0 && header.MemberId != 0 && header.Revision != 0 && header.RaftTerm != 0, "header is %v", header)
		cluster = header.ClusterId
	})
	r.Step("members", func(ctx context.Context) {
		list, err := client.MemberList(ctx)
		r.Must("member list", err)
		r.That(len(list.Members) > 0, "no members")
		for _, member := range list.Members {
			r.That(member.ID != 0 && len(member.ClientURLs) > 0 && member.ClientURLs[0] != "", "member is %v", member)
		}
		support.Equal(r, "cluster id", list.Header.ClusterId, cluster)
	})
	r.Step("header", func(ctx context.Context) {
		moves(r, "two reads", 0, func() (int64, int64) {
			first, err := client.Get(ctx, r.Prefix+"/none")
			r.Must("get", err)
			second, err := client.Get(ctx, r.Prefix+"/none")
			r.Must("get", err)
			support.Equal(r, "cluster id", first.Header.ClusterId, cluster)
			support.Equal(r, "second cluster id", second.Header.ClusterId, cluster)
			r.That(first.Header.Revision != 0, "revision is 0")
			return first.Header.Revision, second.Header.Revision
		})
	})
	r.Step("unreachable", func(context.Context) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		r.Must("find a port", err)
		nobody := listener.Addr().String()
		r.Must("free the port", listener.Close())
		asked := time.Now()
		settings := config(nobody)
		settings.DialTimeout = 3 * time.Second
		stray, err := clientv3.New(settings)
		if err == nil {
			defer stray.Close()
			ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
			defer cancel()
			_, err = stray.Get(ctx, r.Prefix+"/none")
		}
		r.That(errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Unavailable, "got %v", err)
		r.That(time.Since(asked) < 3500*time.Millisecond, "the error took %v", time.Since(asked))
	})
}
