package gozookeeper

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"sort"
	"time"

	"github.com/go-zookeeper/zk"

	"causeway.dev/compat-tests/clients/go/support"
)

func init() { Scenarios["discovery"] = discovery }

// instance is what an application writes that shares its registrations with Curator's.
type instance struct {
	Name                string         `json:"name"`
	ID                  string         `json:"id"`
	Address             string         `json:"address"`
	Port                int            `json:"port"`
	SSLPort             *int           `json:"sslPort"`
	Payload             map[string]any `json:"payload"`
	RegistrationTimeUTC int64          `json:"registrationTimeUTC"`
	ServiceType         string         `json:"serviceType"`
	URISpec             *struct{}      `json:"uriSpec"`
}

func discovery(r *support.Run) {
	reader := connect(r, r.Address, ordinary)
	var followed *follower
	var all []*registered

	r.Step("empty", func(context.Context) {
		reader.root(r)
		followed = follow(r, reader, r.Prefix)
		support.Equal(r, "list", followed.list(r), []string{})
	})
	r.Step("registered", func(context.Context) {
		for number := range 3 {
			all = append(all, register(r, 7001+number))
		}
		followed.shows(r, 3*time.Second, all)
	})
	r.Step("updated", func(context.Context) {
		all[1].value.Port = 7102
		stat := all[1].client.set(r, all[1].path, all[1].text(r))
		support.Equal(r, "version", stat.Version, 1)
		followed.shows(r, 3*time.Second, all)
	})
	r.Step("left", func(context.Context) {
		all[0].client.remove(r, all[0].path)
		all = all[1:]
		followed.shows(r, 2*time.Second, all)
	})
	r.Step("died", func(context.Context) {
		all = append(all, register(r, 7004), register(r, 7005))
		followed.shows(r, 3*time.Second, all)
		all[3].client.Close()
		all = all[:3]
		followed.shows(r, 3*time.Second, all)
	})
	r.Step("all-left", func(context.Context) {
		for _, one := range all {
			one.client.remove(r, one.path)
		}
		followed.shows(r, 3*time.Second, nil)
	})
}

// registered is an instance with a session of its own.
type registered struct {
	client *client
	path   string
	value  instance
}

func register(r *support.Run, port int) *registered {
	id := fmt.Sprintf("instance-%d", port)
	one := &registered{connect(r, r.Address, ordinary), r.Prefix + "/" + id, instance{
		Name: path.Base(r.Prefix), ID: id, Address: "127.0.0.1", Port: port,
		RegistrationTimeUTC: time.Now().UnixMilli(), ServiceType: "DYNAMIC",
	}}
	one.client.create(r, one.path, one.text(r), zk.FlagEphemeral)
	return one
}

func (i *registered) text(r *support.Run) string {
	text, err := json.Marshal(i.value)
	r.Must("encode", err)
	return string(text)
}

// follower keeps the list of names by a child watch that it sets anew after each event.
type follower struct {
	client *client
	parent string
	names  []string
	watch  armed
}

func follow(r *support.Run, reader *client, parent string) *follower {
	names, watch := reader.childrenW(r, parent)
	return &follower{reader, parent, names, watch}
}

// list reads each instance of the followed names; one that went meanwhile is left out.
func (f *follower) list(r *support.Run) []string {
	select {
	case event := <-f.watch.events:
		r.Must("watch on the service", event.Err)
		support.Equal(r, "event", event.Type, zk.EventNodeChildrenChanged)
		f.names, f.watch = f.client.childrenW(r, f.parent)
	default:
	}
	seen := []string{}
	for _, name := range f.names {
		value, _, err := f.client.Get(f.parent + "/" + name)
		if err == zk.ErrNoNode {
			continue
		}
		r.Must("get "+name, err)
		var one instance
		r.Must("decode "+string(value), json.Unmarshal(value, &one))
		seen = append(seen, fmt.Sprintf("%s %s:%d", name, one.Address, one.Port))
	}
	sort.Strings(seen)
	return seen
}

func (f *follower) shows(r *support.Run, limit time.Duration, want []*registered) {
	expected := []string{}
	for _, one := range want {
		expected = append(expected, fmt.Sprintf("%s %s:%d", one.value.ID, one.value.Address, one.value.Port))
	}
	sort.Strings(expected)
	r.Within(limit, fmt.Sprint("list ", expected), func() (bool, string) {
		seen := fmt.Sprint(f.list(r))
		// The list may not come from names alone that are out of date.
		return seen == fmt.Sprint(expected) && len(f.names) == len(expected), seen
	})
}
