package compat.curator;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.CuratorWatcher;
import org.apache.zookeeper.KeeperException.NoNodeException;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class WatchData implements Scenario {
    private CuratorFramework a;
    private CuratorFramework b;
    private String root;
    private String node;

    @Override
    public void run(Run run) throws Exception {
        a = Cf.connect(run);
        b = Cf.connect(run);
        root = Cf.root(run, b);
        node = Cf.make(b, root + "/node", "0");
        Events watch = new Events();
        run.step("once", () -> {
            a.getData().usingWatcher(watch).forPath(node);
            Cf.set(b, node, "1");
            Cf.set(b, node, "2");
            watch.once(EventType.NodeDataChanged, node);
        });
        run.step("before", () -> {
            equal("value after the event", "2", Cf.get(a, node));
            // Background replies and events are told by one thread, in the order in which they came from the server.
            for (int round = 0; round < 20; round++) {
                eventBeforeValue("value " + round);
            }
        });
        run.step("again", () -> {
            a.getData().usingWatcher(watch).forPath(node);
            Cf.set(b, node, "3");
            watch.once(EventType.NodeDataChanged, node);
        });
        run.step("deleted", () -> {
            a.getData().usingWatcher(watch).forPath(node);
            b.delete().forPath(node);
            watch.once(EventType.NodeDeleted, node);
        });
        run.step("both", () -> {
            Cf.make(b, node, "0");
            Events other = new Events();
            a.getData().usingWatcher(watch).forPath(node);
            a.getData().usingWatcher(other).forPath(node);
            a.getData().usingWatcher(watch).forPath(node);
            Cf.set(b, node, "1");
            watch.once(EventType.NodeDataChanged, node);
            other.once(EventType.NodeDataChanged, node);
        });
        run.step("none", () -> {
            String missing = root + "/missing";
            refused("get", NoNodeException.class, () -> a.getData().usingWatcher(watch).forPath(missing));
            Cf.make(b, missing, "");
            watch.silent(1000);
        });
        run.step("own", () -> {
            a.getData().usingWatcher(watch).forPath(node);
            Cf.set(a, node, "by A");
            watch.once(EventType.NodeDataChanged, node);
        });
    }

    private void eventBeforeValue(String value) throws Exception {
        List<String> told = Collections.synchronizedList(new ArrayList<>());
        a.getData().usingWatcher((CuratorWatcher) event -> told.add("event")).forPath(node);
        Thread writer = Run.daemon("writer", () -> Cf.set(b, node, value));
        boolean shown = false;
        for (int tries = 0; tries < 2000 && !shown; tries++) {
            CompletableFuture<String> reply = new CompletableFuture<>();
            a.getData().inBackground((client, event) -> {
                String seen = event.getData() == null ? "error " + event.getResultCode() : new String(event.getData(), StandardCharsets.UTF_8);
                told.add(seen);
                reply.complete(seen);
            }).forPath(node);
            shown = reply.get(5, TimeUnit.SECONDS).equals(value);
        }
        writer.join();
        holds("the new value is shown", shown, told.size() + " replies without it");
        int event = told.indexOf("event");
        holds("the event comes before the reply that shows the change", event >= 0 && event < told.indexOf(value), "event at " + event + ", value at " + told.indexOf(value));
    }
}
