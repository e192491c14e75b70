package compat.curator;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class WatchExists implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        CuratorFramework a = Cf.connect(run);
        CuratorFramework b = Cf.connect(run);
        String node = Cf.root(run, b) + "/node";
        Events watch = new Events();
        run.step("created", () -> {
            equal("stat", null, a.checkExists().usingWatcher(watch).forPath(node));
            Cf.make(b, node, "");
            watch.once(EventType.NodeCreated, node);
        });
        run.step("changed", () -> {
            holds("the node is there", a.checkExists().usingWatcher(watch).forPath(node) != null, "nothing");
            Cf.set(b, node, "1");
            watch.once(EventType.NodeDataChanged, node);
        });
        run.step("deleted", () -> {
            a.checkExists().usingWatcher(watch).forPath(node);
            b.delete().forPath(node);
            watch.once(EventType.NodeDeleted, node);
        });
        run.step("children-silent", () -> {
            Cf.make(b, node, "");
            a.checkExists().usingWatcher(watch).forPath(node);
            Cf.make(b, node + "/child", "");
            watch.silent(1000);
        });
    }
}
