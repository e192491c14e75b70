package gozookeeper

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["connect"] = connectScenario }

func connectScenario(r *support.Run) {
	direct := connect(r, r.Address, ordinary)
	node := r.Prefix + "/ephemeral"

	r.Step("session", func(context.Context) {
		r.That(direct.SessionID() != 0, "session id is 0")
		r.Note("the library does not show the session's password")
		direct.root(r)
	})
	r.Step("timeout-low", func(context.Context) {
		support.Equal(r, "negotiated", connect(r, r.Address, 100*time.Millisecond).negotiated(r), 4_000)
	})
	r.Step("timeout-high", func(context.Context) {
		support.Equal(r, "negotiated", connect(r, r.Address, 100*time.Second).negotiated(r), 40_000)
	})
	idle := connect(r, r.Address, 4*time.Second)
	r.Step("idle", func(context.Context) {
		support.Equal(r, "negotiated", idle.negotiated(r), 4_000)
		idle.create(r, node, "", zk.FlagEphemeral)
		session := idle.SessionID()
		time.Sleep(10 * time.Second)
		stat := direct.exists(r, node)
		r.That(stat != nil, "the ephemeral node is gone")
		support.Equal(r, "owner", stat.EphemeralOwner, session)
		support.Equal(r, "session id", idle.SessionID(), session)
		support.Equal(r, "disconnected meanwhile", idle.sawState(zk.StateDisconnected), false)
	})
	r.Step("close", func(context.Context) {
		idle.Close()
		r.Within(time.Second, "the ephemeral node is gone", func() (bool, string) { return direct.exists(r, node) == nil, "the node" })
		direct.remove(r, r.Prefix)
	})
}
