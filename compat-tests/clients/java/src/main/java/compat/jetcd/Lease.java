package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseGrantResponse;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.lease.LeaseTimeToLiveResponse;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.watch.WatchEvent;
import java.util.List;

public final class Lease implements Scenario {
    private long lease;

    @Override
    public void run(Run run) throws Exception {
        Client client = Etcd.connect(run);
        io.etcd.jetcd.Lease leases = client.getLeaseClient();
        String prefix = run.prefix();
        LeaseOption withKeys = LeaseOption.builder().withAttachedKeys().build();
        run.step("grant", () -> {
            LeaseGrantResponse granted = Etcd.get(leases.grant(60));
            lease = granted.getID();
            holds("a positive id", lease > 0, lease);
            equal("TTL", 60L, granted.getTTL());
        });
        run.lacks("own-id", "grant takes no id");
        run.step("attach", () -> {
            for (String name : List.of("/a", "/b")) {
                Etcd.put(client, prefix + name, "x", lease);
                equal("lease of " + name, lease, Etcd.pair(client, prefix + name).getLease());
            }
        });
        run.step("ttl", () -> {
            LeaseTimeToLiveResponse left = Etcd.get(leases.timeToLive(lease, withKeys));
            equal("id", lease, left.getID());
            equal("granted", 60L, left.getGrantedTTL());
            holds("remaining 50 to 60", left.getTTL() >= 50 && left.getTTL() <= 60, left.getTTL());
            equal("keys", List.of(prefix + "/a", prefix + "/b"), left.getKeys().stream().map(Etcd::text).sorted().toList());
        });
        run.lacks("leases", "no list of leases");
        run.step("keep-alive", () -> {
            LeaseKeepAliveResponse kept = Etcd.get(leases.keepAliveOnce(lease));
            equal("id", lease, kept.getID());
            equal("TTL", 60L, kept.getTTL());
        });
        run.step("detach", () -> {
            Etcd.put(client, prefix + "/b", "x");
            equal("lease", 0L, Etcd.pair(client, prefix + "/b").getLease());
        });
        run.step("no-lease", () -> Etcd.says("put", "requested lease not found", () -> client.getKVClient().put(Etcd.bytes(prefix + "/c"), Etcd.bytes("x"),
                PutOption.builder().withLeaseId(lease + 1).build())));
        run.step("revoke", () -> {
            Etcd.get(leases.revoke(lease));
            equal("the leased key", null, Etcd.pair(client, prefix + "/a"));
            equal("the detached key", "x", Etcd.value(client, prefix + "/b"));
        });
        run.step("revoke-again", () -> Etcd.says("revoke", "requested lease not found", () -> leases.revoke(lease)));
        run.step("gone", () -> equal("TTL", -1L, Etcd.get(leases.timeToLive(lease, withKeys)).getTTL()));
        run.step("keep-alive-gone", () -> Etcd.says("keep-alive", "requested lease not found", () -> leases.keepAliveOnce(lease)));
        run.step("one-revision", () -> {
            long three = Etcd.get(leases.grant(60)).getID();
            for (String name : List.of("/three/b", "/three/a", "/three/c")) {
                Etcd.put(client, prefix + name, "x", three);
            }
            Events watch = Events.of(run, client, prefix + "/three/", Events.prefix());
            long before = Etcd.pair(client, prefix + "/three/c").getModRevision();
            Etcd.get(leases.revoke(three));
            WatchEvent first = watch.next(5000);
            long revision = first.getKeyValue().getModRevision();
            holds("revision greater than " + before, revision > before, revision);
            equal("first event", "DELETE " + prefix + "/three/a", first.getEventType() + " " + Etcd.text(first.getKeyValue().getKey()));
            watch.delete(prefix + "/three/b", revision);
            watch.delete(prefix + "/three/c", revision);
            watch.silent(300);
        });
    }
}
