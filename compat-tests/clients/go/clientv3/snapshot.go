package clientv3

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["snapshot"] = snapshot }

func snapshot(r *support.Run) {
	client := connect(r, r.Address)
	folder, err := os.MkdirTemp("", "snapshot")
	r.Must("folder", err)
	r.Cleanup(func() { _ = os.RemoveAll(folder) })
	first := filepath.Join(folder, "first")
	var at int64

	r.Step("saved", func(ctx context.Context) {
		at = put(r, ctx, client, r.Prefix+"/one", "first").Header.Revision
		save(r, ctx, client, first)
	})
	r.Step("holds", func(context.Context) {
		pair := stored(r, first, r.Prefix+"/one")
		support.Equal(r, "value", string(pair.Value), "first")
		support.Equal(r, "revision", pair.ModRevision, at)
	})
	r.Step("later", func(ctx context.Context) {
		put(r, ctx, client, r.Prefix+"/two", "second")
		second := filepath.Join(folder, "second")
		save(r, ctx, client, second)
		support.Equal(r, "the first", string(stored(r, second, r.Prefix+"/one").Value), "first")
		support.Equal(r, "the second", string(stored(r, second, r.Prefix+"/two").Value), "second")
	})
}

// save writes a snapshot without its checksum, which it checks.
func save(r *support.Run, ctx context.Context, client *clientv3.Client, file string) {
	stream, err := client.Snapshot(ctx)
	r.Must("snapshot", err)
	whole, err := io.ReadAll(stream)
	r.Must("read the snapshot", err)
	r.That(len(whole) > sha256.Size, "the snapshot has %d bytes", len(whole))
	database, sum := whole[:len(whole)-sha256.Size], whole[len(whole)-sha256.Size:]
	support.Equal(r, "checksum", sha256.Sum256(database), [sha256.Size]byte(sum))
	r.Must("write the database", os.WriteFile(file, database, 0o600))
}

// stored is the newest pair of a key in a database of etcd's.
func stored(r *support.Run, file, key string) *mvccpb.KeyValue {
	database, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true})
	r.Must("open the database", err)
	defer func() { _ = database.Close() }()
	var newest *mvccpb.KeyValue
	var revision uint64
	r.Must("read the database", database.View(func(read *bbolt.Tx) error {
		bucket := read.Bucket([]byte("key"))
		r.That(bucket != nil, "the database has no bucket of keys")
		return bucket.ForEach(func(at, value []byte) error {
			pair := &mvccpb.KeyValue{}
			if err := proto.Unmarshal(value, pair); err != nil {
				return err
			}
			// A deletion's revision ends in a mark, and it has the key alone.
			if main := binary.BigEndian.Uint64(at); string(pair.Key) == key && main >= revision {
				newest, revision = pair, main
			}
			return nil
		})
	}))
	r.That(newest != nil, "%s is not in the snapshot", key)
	return newest
}
