package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import io.etcd.jetcd.watch.WatchEvent;
import java.util.concurrent.atomic.AtomicInteger;

public final class LeaseExpiry implements Scenario {
    private CloseableClient renewal;

    @Override
    public void run(Run run) throws Exception {
        Client client = Etcd.connect(run);
        String prefix = run.prefix();
        run.step("expires", () -> {
            Events watch = Events.of(run, client, prefix + "/brief", Events.key());
            long start = System.nanoTime();
            long lease = Etcd.get(client.getLeaseClient().grant(2)).getID();
            long put = Etcd.put(client, prefix + "/brief", "x", lease).getHeader().getRevision();
            watch.put(prefix + "/brief", "x", put);
            WatchEvent event = watch.next(6000);
            long took = (System.nanoTime() - start) / 1_000_000;
            equal("event", WatchEvent.EventType.DELETE, event.getEventType());
            holds("milliseconds from the grant, 1500 to 6000", took >= 1500 && took <= 6000, took);
            equal("the key", null, Etcd.pair(client, prefix + "/brief"));
        });
        run.step("kept", () -> {
            long lease = Etcd.get(client.getLeaseClient().grant(2)).getID();
            Etcd.put(client, prefix + "/kept", "x", lease);
            AtomicInteger renewals = new AtomicInteger();
            renewal = client.getLeaseClient().keepAlive(lease, Observers.<LeaseKeepAliveResponse>observer(response -> renewals.incrementAndGet()));
            Run.pause(7000);
            equal("value", "x", Etcd.value(client, prefix + "/kept"));
            holds("renewals, at least 3", renewals.get() >= 3, renewals.get());
        });
        run.step("stopped", () -> {
            renewal.close();
            eventually("the key", 7000, null, () -> Etcd.pair(client, prefix + "/kept"));
        });
    }
}
