package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.KeeperException.NoNodeException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooKeeper;

public final class WatchData implements Scenario {
    private ZooKeeper a;
    private ZooKeeper b;
    private String root;
    private String node;

    @Override
    public void run(Run run) throws Exception {
        a = Zk.connect(run);
        b = Zk.connect(run);
        root = Zk.root(run, b);
        node = Zk.make(b, root + "/node", "0");
        Events watch = new Events();
        run.step("once", () -> {
            a.getData(node, watch, null);
            Zk.set(b, node, "1");
            Zk.set(b, node, "2");
            watch.once(EventType.NodeDataChanged, node);
        });
        run.step("before", () -> {
            equal("value after the event", "2", Zk.get(a, node));
            // Replies to asynchronous calls and events are told by one thread, in the order in which they came from the server.
            for (int round = 0; round < 20; round++) {
                eventBeforeValue("value " + round);
            }
        });
        run.step("again", () -> {
            a.getData(node, watch, null);
            Zk.set(b, node, "3");
            watch.once(EventType.NodeDataChanged, node);
        });
        run.step("deleted", () -> {
            a.getData(node, watch, null);
            b.delete(node, -1);
            watch.once(EventType.NodeDeleted, node);
        });
        run.step("both", () -> {
            Zk.make(b, node, "0");
            Events other = new Events();
            a.getData(node, watch, null);
            a.getData(node, other, null);
            a.getData(node, watch, null);
            Zk.set(b, node, "1");
            watch.once(EventType.NodeDataChanged, node);
            other.once(EventType.NodeDataChanged, node);
        });
        run.step("none", () -> {
            String missing = root + "/missing";
            refused("get", NoNodeException.class, () -> a.getData(missing, watch, null));
            Zk.make(b, missing, "");
            watch.silent(1000);
        });
        run.step("own", () -> {
            a.getData(node, watch, null);
            Zk.set(a, node, "by A");
            watch.once(EventType.NodeDataChanged, node);
        });
    }

    private void eventBeforeValue(String value) throws Exception {
        List<String> told = Collections.synchronizedList(new ArrayList<>());
        a.getData(node, event -> told.add("event"), null);
        Thread writer = Run.daemon("writer", () -> Zk.set(b, node, value));
        boolean shown = false;
        for (int tries = 0; tries < 2000 && !shown; tries++) {
            CompletableFuture<String> reply = new CompletableFuture<>();
            a.getData(node, false, (code, path, context, data, stat) -> {
                String seen = data == null ? "error " + code : new String(data, StandardCharsets.UTF_8);
                told.add(seen);
                reply.complete(seen);
            }, null);
            shown = reply.get(5, TimeUnit.SECONDS).equals(value);
        }
        writer.join();
        holds("the new value is shown", shown, told.size() + " replies without it");
        int event = told.indexOf("event");
        holds("the event comes before the reply that shows the change", event >= 0 && event < told.indexOf(value), "event at " + event + ", value at " + told.indexOf(value));
    }
}
