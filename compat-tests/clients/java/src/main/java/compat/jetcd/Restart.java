package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.support.Observers;
import java.util.concurrent.TimeUnit;

public final class Restart implements Scenario {
    private Client client;
    private Events watch;
    private String leased;
    private String watched;
    private long lease;
    private long bare;
    private long modified;
    private long last;

    @Override
    public int limitSeconds() {
        return 115;
    }

    @Override
    public void run(Run run) throws Exception {
        run.step("before", () -> {
            client = Etcd.connect(run);
            leased = run.prefix() + "/leased";
            watched = run.prefix() + "/watched/";
            lease = Etcd.get(client.getLeaseClient().grant(15)).getID();
            bare = Etcd.get(client.getLeaseClient().grant(300)).getID();
            client.getLeaseClient().keepAlive(lease, Observers.<LeaseKeepAliveResponse>observer(response -> {}));
            modified = Etcd.put(client, leased, "x", lease).getHeader().getRevision();
            watch = Events.of(run, client, watched, Events.prefix());
            last = Etcd.put(client, watched + "0", "0").getHeader().getRevision();
            watch.put(watched + "0", "0", last);
        });
        run.step("down", () -> {
            run.fault("restart");
            eventually("a get is answered", 15_000, true, () -> {
                try {
                    client.getKVClient().get(Etcd.bytes(leased)).get(2, TimeUnit.SECONDS);
                    return true;
                } catch (Exception e) {
                    return false;
                }
            });
        });
        run.step("stays", () -> {
            Etcd.pair("pair", Etcd.pair(client, leased), leased, "x", modified, modified, 1, lease);
            long revision = Etcd.revision(client, run.prefix());
            holds("revision not below " + last, revision >= last, revision);
            var kept = Etcd.get(client.getLeaseClient().timeToLive(bare, LeaseOption.DEFAULT));
            equal("granted to the lease without a key", 300L, kept.getGrantedTTL());
            holds("remaining of it, above 200", kept.getTTL() > 200, kept.getTTL());
        });
        run.step("watch", () -> {
            for (int i = 1; i <= 3; i++) {
                long revision = Etcd.put(client, watched + i, "" + i).getHeader().getRevision();
                // The library waits longer after each try to connect.
                Etcd.pair("pair", watch.next(20_000).getKeyValue(), watched + i, "" + i, revision, revision, 1, 0);
            }
            watch.silent(500);
        });
        run.step("alive", () -> {
            Run.pause(10_000);
            long left = Etcd.get(client.getLeaseClient().timeToLive(lease, LeaseOption.DEFAULT)).getTTL();
            holds("remaining of 15, 8 at least", left >= 8, left);
            Etcd.pair("pair", Etcd.pair(client, leased), leased, "x", modified, modified, 1, lease);
            watch.put(watched + "4", "4", Etcd.put(client, watched + "4", "4").getHeader().getRevision());
            watch.silent(300);
        });
    }
}
