package compat.zookeeper;

import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.KeeperException.NoWatcherException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.WatcherType;
import org.apache.zookeeper.ZooKeeper;

public final class WatchPersistent implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        ZooKeeper a = Zk.connect(run);
        ZooKeeper b = Zk.connect(run);
        String root = Zk.root(run, b);
        String node = Zk.make(b, root + "/node", "");
        String tree = Zk.make(b, root + "/tree", "");
        Events watch = new Events();
        Events recursive = new Events();
        run.step("persistent", () -> {
            a.addWatch(node, watch, AddWatchMode.PERSISTENT);
            Zk.set(b, node, "1");
            Zk.set(b, node, "2");
            Zk.make(b, node + "/child", "");
            watch.next(EventType.NodeDataChanged, node);
            watch.next(EventType.NodeDataChanged, node);
            watch.once(EventType.NodeChildrenChanged, node);
        });
        run.step("stays-over-delete", () -> {
            b.delete(node + "/child", -1);
            b.delete(node, -1);
            Zk.make(b, node, "");
            watch.next(EventType.NodeChildrenChanged, node);
            watch.next(EventType.NodeDeleted, node);
            watch.once(EventType.NodeCreated, node);
        });
        run.step("recursive", () -> {
            a.addWatch(tree, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
            Zk.make(b, tree + "/a", "");
            Zk.make(b, tree + "/a/b", "");
            Zk.set(b, tree + "/a/b", "1");
            b.delete(tree + "/a/b", -1);
            recursive.next(EventType.NodeCreated, tree + "/a");
            recursive.next(EventType.NodeCreated, tree + "/a/b");
            recursive.next(EventType.NodeDataChanged, tree + "/a/b");
            recursive.once(EventType.NodeDeleted, tree + "/a/b");
        });
        run.step("removed", () -> {
            a.removeWatches(node, watch, WatcherType.Any, false);
            a.removeWatches(tree, recursive, WatcherType.Any, false);
            // Told to the watcher itself when it is removed.
            watch.next(EventType.PersistentWatchRemoved, node);
            recursive.next(EventType.PersistentWatchRemoved, tree);
            Zk.set(b, node, "3");
            Zk.make(b, tree + "/c", "");
            watch.silent(1000);
            recursive.silent(10);
        });
        run.step("remove-none", () -> refused("removing", NoWatcherException.class, () -> {
            a.removeWatches(node, watch, WatcherType.Any, false);
            return "removed";
        }));
        run.note("remove-none: the Java client refuses this itself, the server is not asked");
    }
}
