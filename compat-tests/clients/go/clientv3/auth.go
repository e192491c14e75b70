package clientv3

import (
	"context"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["auth"] = auth }

func auth(r *support.Run) {
	anyone := connect(r, r.Address)
	key := r.Prefix + "/key"
	const role = "compat-reader"
	var root *clientv3.Client

	r.Step("off", func(ctx context.Context) {
		_, err := anyone.Authenticate(ctx, "root", "secret")
		refused(r, "authenticate", err, rpctypes.ErrAuthNotEnabled)
	})
	r.Step("setup", func(ctx context.Context) {
		// A step that fails must not leave a locked server behind for whoever comes next.
		r.Cleanup(func() { switchOff(r, role) })
		must := func(_ any, err error) { r.Must("setup", err) }
		must(anyone.UserAdd(ctx, "root", "secret"))
		must(anyone.RoleAdd(ctx, "root"))
		must(anyone.UserGrantRole(ctx, "root", "root"))
		must(anyone.UserAdd(ctx, "reader", "letters"))
		must(anyone.RoleAdd(ctx, role))
		must(anyone.RoleGrantPermission(ctx, role, r.Prefix, clientv3.GetPrefixRangeEnd(r.Prefix), clientv3.PermissionType(clientv3.PermRead)))
		must(anyone.UserGrantRole(ctx, "reader", role))
		_, err := anyone.Put(ctx, key, "before")
		r.Must("put", err)
		must(anyone.AuthEnable(ctx))
	})
	r.Step("anonymous", func(ctx context.Context) {
		_, err := anyone.Put(ctx, key, "anonymous")
		refused(r, "put", err, rpctypes.ErrUserEmpty)
	})
	r.Step("wrong", func(context.Context) {
		_, err := as(r, "reader", "guess")
		refused(r, "connect", err, rpctypes.ErrAuthFailed)
	})
	r.Step("reader", func(ctx context.Context) {
		reader, err := as(r, "reader", "letters")
		r.Must("connect", err)
		defer reader.Close()
		support.Equal(r, "value", string(get(r, ctx, reader, key).Value), "before")
		_, err = reader.Put(ctx, key, "reader")
		refused(r, "put", err, rpctypes.ErrPermissionDenied)
		_, err = reader.Get(ctx, r.Prefix[:len(r.Prefix)-1])
		refused(r, "get beside the prefix", err, rpctypes.ErrPermissionDenied)
	})
	r.Step("root", func(ctx context.Context) {
		var err error
		root, err = as(r, "root", "secret")
		r.Must("connect", err)
		put(r, ctx, root, key, "root")
		support.Equal(r, "value", string(get(r, ctx, root, key).Value), "root")
	})
	r.Step("cleanup", func(ctx context.Context) {
		must := func(_ any, err error) { r.Must("cleanup", err) }
		must(root.AuthDisable(ctx))
		r.Must("close", root.Close())
		for _, user := range []string{"reader", "root"} {
			must(anyone.UserDelete(ctx, user))
		}
		for _, role := range []string{role, "root"} {
			must(anyone.RoleDelete(ctx, role))
		}
		put(r, ctx, anyone, key, "open again")
		users, err := anyone.UserList(ctx)
		r.Must("list of users", err)
		support.Equal(r, "users", len(users.Users), 0)
		roles, err := anyone.RoleList(ctx)
		r.Must("list of roles", err)
		support.Equal(r, "roles", len(roles.Roles), 0)
	})
}

func as(r *support.Run, user, password string) (*clientv3.Client, error) {
	settings := config(r.Address)
	settings.Username, settings.Password = user, password
	return clientv3.New(settings)
}

// switchOff undoes whatever is left of the setup; where nothing is left its calls are refused, which is as well.
func switchOff(r *support.Run, role string) {
	ctx := context.Background()
	if root, err := as(r, "root", "secret"); err == nil {
		_, _ = root.AuthDisable(ctx)
		_ = root.Close()
	}
	client, err := clientv3.New(config(r.Address))
	if err != nil {
		return
	}
	defer client.Close()
	for _, user := range []string{"reader", "root"} {
		_, _ = client.UserDelete(ctx, user)
	}
	for _, role := range []string{role, "root"} {
		_, _ = client.RoleDelete(ctx, role)
	}
}
