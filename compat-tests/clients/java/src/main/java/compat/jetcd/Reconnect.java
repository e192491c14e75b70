package compat.jetcd;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.support.Observers;
import io.etcd.jetcd.watch.WatchEvent;
import java.util.ArrayList;
import java.util.List;

public final class Reconnect implements Scenario {
    private final List<Long> revisions = new ArrayList<>();
    private Client a;
    private Client b;
    private Events watch;
    private String leased;
    private long lease;
    private long mended;

    @Override
    public void run(Run run) throws Exception {
        String prefix = run.prefix();
        String watched = prefix + "/watched/";
        run.step("before", () -> {
            a = Etcd.connect(run, run.link());
            b = Etcd.connect(run);
            leased = prefix + "/leased";
            lease = Etcd.get(a.getLeaseClient().grant(15)).getID();
            a.getLeaseClient().keepAlive(lease, Observers.<LeaseKeepAliveResponse>observer(response -> {}));
            Etcd.put(a, leased, "x", lease);
            watch = Events.of(run, a, watched, Events.prefix());
            watch.put(watched + "0", "0", Etcd.put(b, watched + "0", "0").getHeader().getRevision());
        });
        run.step("away", () -> {
            run.fault("cut");
            for (int i = 1; i <= 3; i++) {
                revisions.add(Etcd.put(b, watched + i, "" + i).getHeader().getRevision());
            }
            revisions.add(Etcd.get(b.getKVClient().delete(Etcd.bytes(watched + "2"))).getHeader().getRevision());
            Run.pause(2000);
            run.fault("mend");
            mended = System.nanoTime();
        });
        run.step("missed", () -> {
            for (int i = 1; i <= 3; i++) {
                // The library waits longer after each try to connect.
                WatchEvent event = watch.next(20_000);
                Etcd.pair("pair", event.getKeyValue(), watched + i, "" + i, revisions.get(i - 1), revisions.get(i - 1), 1, 0);
            }
            watch.delete(watched + "2", revisions.get(3));
            watch.silent(500);
        });
        run.step("alive", () -> {
            Run.pause(Math.max(0, 8000 - (System.nanoTime() - mended) / 1_000_000));
            equal("lease of the key", lease, Etcd.pair(b, leased).getLease());
            equal("value", "x", Etcd.value(a, leased));
        });
    }
}
