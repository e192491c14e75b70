package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooKeeper;

public final class WatchExists implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        ZooKeeper a = Zk.connect(run);
        ZooKeeper b = Zk.connect(run);
        String node = Zk.root(run, b) + "/node";
        Events watch = new Events();
        run.step("created", () -> {
            equal("stat", null, a.exists(node, watch));
            Zk.make(b, node, "");
            watch.once(EventType.NodeCreated, node);
        });
        run.step("changed", () -> {
            holds("the node is there", a.exists(node, watch) != null, "nothing");
            Zk.set(b, node, "1");
            watch.once(EventType.NodeDataChanged, node);
        });
        run.step("deleted", () -> {
            a.exists(node, watch);
            b.delete(node, -1);
            watch.once(EventType.NodeDeleted, node);
        });
        run.step("children-silent", () -> {
            Zk.make(b, node, "");
            a.exists(node, watch);
            Zk.make(b, node + "/child", "");
            watch.silent(1000);
        });
    }
}
