package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.util.List;
import org.apache.zookeeper.KeeperException.NoNodeException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooKeeper;

public final class Chroot implements Scenario {
    private ZooKeeper inside;

    @Override
    public void run(Run run) throws Exception {
        ZooKeeper whole = Zk.connect(run);
        String root = Zk.root(run, whole);
        run.step("missing", () -> {
            ZooKeeper client = Zk.connect(run, run.address() + root + "/missing", Zk.SESSION_MILLIS, new Events());
            refused("create", NoNodeException.class, () -> Zk.make(client, "/node", ""));
        });
        run.step("works", () -> {
            inside = Zk.connect(run, run.address() + Zk.make(whole, root + "/home", ""), Zk.SESSION_MILLIS, new Events());
            equal("path", "/node", Zk.make(inside, "/node", "value"));
            equal("value", "value", Zk.get(inside, "/node"));
            equal("children", List.of("node"), Zk.children(inside, "/"));
            equal("value by the whole path", "value", Zk.get(whole, root + "/home/node"));
            equal("children by the whole path", List.of("node"), Zk.children(whole, root + "/home"));
        });
        run.step("watch", () -> {
            Events watch = new Events();
            inside.getData("/node", watch, null);
            Zk.set(whole, root + "/home/node", "changed");
            watch.once(EventType.NodeDataChanged, "/node");
            inside.getChildren("/", watch);
            Zk.make(whole, root + "/home/other", "");
            watch.once(EventType.NodeChildrenChanged, "/");
        });
    }
}
