package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.options.LeaseOption;
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
    private long modified;
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
            modified = Etcd.put(a, leased, "x", lease).getHeader().getRevision();
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
            Etcd.pair("pair", Etcd.pair(b, leased), leased, "x", modified, modified, 1, lease);
            equal("value over the link", "x", Etcd.value(a, leased));
            long left = Etcd.get(b.getLeaseClient().timeToLive(lease, LeaseOption.DEFAULT)).getTTL();
            holds("remaining of 15, 8 at least", left >= 8, left);
            watch.put(watched + "4", "4", Etcd.put(b, watched + "4", "4").getHeader().getRevision());
            watch.silent(300);
        });
    }
}
