package clientv3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["stm"] = stm }

const accounts = 5

func stm(r *support.Run) {
	client := connect(r, r.Address)

	r.Step("transfers", func(ctx context.Context) {
		levels := []concurrency.Isolation{concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads, concurrency.ReadCommitted}
		for at, level := range levels {
			account := func(number int) string { return fmt.Sprintf("%s/level-%d/account-%d", r.Prefix, at, number) }
			for number := range accounts {
				put(r, ctx, client, account(number), "100")
			}
			finished := make(chan error, 4)
			for range 4 {
				own := connect(r, r.Address)
				go func() { finished <- transfers(ctx, own, level, account) }()
			}
			for range 4 {
				r.Must("a client", support.Next(r, 20*time.Second, "a client's transfers", finished))
			}
			// The weakest level does not check what was read, and loses updates by design.
			sum := 0
			for number := range accounts {
				balance, err := strconv.Atoi(string(get(r, ctx, client, account(number)).Value))
				r.Must("balance", err)
				sum += balance
			}
			if level != concurrency.ReadCommitted {
				support.Equal(r, fmt.Sprintf("sum in level %d", level), sum, 100*accounts)
			}
		}
	})
	r.Step("repeatable", func(ctx context.Context) {
		key := r.Prefix + "/read-twice"
		put(r, ctx, client, key, "before")
		other, runs := connect(r, r.Address), 0
		var one, two string
		_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
			runs++
			one = stm.Get(key)
			if runs == 1 {
				put(r, ctx, other, key, "after")
			}
			two = stm.Get(key)
			stm.Put(r.Prefix+"/read-twice-written", two)
			return nil
		}, concurrency.WithAbortContext(ctx))
		r.Must("stm", err)
		support.Equal(r, "runs", runs, 2)
		support.Equal(r, "reads of the last run", one+" "+two, "after after")
		support.Equal(r, "written", string(get(r, ctx, client, r.Prefix+"/read-twice-written").Value), "after")
	})
	r.Step("abort", func(ctx context.Context) {
		failure := errors.New("not today")
		_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
			stm.Put(r.Prefix+"/never", "x")
			return failure
		}, concurrency.WithAbortContext(ctx))
		r.That(errors.Is(err, failure), "the error is %v", err)
		absent(r, ctx, client, r.Prefix+"/never")
	})
	r.Step("several", func(ctx context.Context) {
		put(r, ctx, client, r.Prefix+"/goes", "x")
		response, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
			value := stm.Get(r.Prefix + "/goes")
			stm.Del(r.Prefix + "/goes")
			stm.Put(r.Prefix+"/first", value+"1")
			stm.Put(r.Prefix+"/second", value+"2")
			return nil
		}, concurrency.WithAbortContext(ctx))
		r.Must("stm", err)
		for name, value := range map[string]string{"/first": "x1", "/second": "x2"} {
			pair := get(r, ctx, client, r.Prefix+name)
			support.Equal(r, name, fmt.Sprint(string(pair.Value), pair.ModRevision), fmt.Sprint(value, response.Header.Revision))
		}
		absent(r, ctx, client, r.Prefix+"/goes")
	})
}

// transfers moves 1 between two accounts, fifteen times.
func transfers(ctx context.Context, client *clientv3.Client, level concurrency.Isolation, account func(int) string) error {
	for range 15 {
		from := rand.IntN(accounts)
		to := (from + 1 + rand.IntN(accounts-1)) % accounts
		_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
			left, err := strconv.Atoi(stm.Get(account(from)))
			if err != nil {
				return err
			}
			right, err := strconv.Atoi(stm.Get(account(to)))
			if err != nil {
				return err
			}
			stm.Put(account(from), strconv.Itoa(left-1))
			stm.Put(account(to), strconv.Itoa(right+1))
			return nil
		}, concurrency.WithIsolation(level), concurrency.WithAbortContext(ctx))
		if err != nil {
			return err
		}
	}
	return nil
}
