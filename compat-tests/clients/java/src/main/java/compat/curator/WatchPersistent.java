package compat.curator;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.KeeperException.NoWatcherException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.WatcherType;

public final class WatchPersistent implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        CuratorFramework a = Cf.connect(run);
        CuratorFramework b = Cf.connect(run);
        String root = Cf.root(run, b);
        String node = Cf.make(b, root + "/node", "");
        String tree = Cf.make(b, root + "/tree", "");
        Events watch = new Events();
        Events recursive = new Events();
        run.step("persistent", () -> {
            a.watchers().add().withMode(AddWatchMode.PERSISTENT).usingWatcher(watch).forPath(node);
            Cf.set(b, node, "1");
            Cf.set(b, node, "2");
            Cf.make(b, node + "/child", "");
            watch.next(EventType.NodeDataChanged, node);
            watch.next(EventType.NodeDataChanged, node);
            watch.once(EventType.NodeChildrenChanged, node);
        });
        run.step("stays-over-delete", () -> {
            b.delete().forPath(node + "/child");
            b.delete().forPath(node);
            Cf.make(b, node, "");
            watch.next(EventType.NodeChildrenChanged, node);
            watch.next(EventType.NodeDeleted, node);
            watch.once(EventType.NodeCreated, node);
        });
        run.step("recursive", () -> {
            a.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher(recursive).forPath(tree);
            Cf.make(b, tree + "/a", "");
            Cf.make(b, tree + "/a/b", "");
            Cf.set(b, tree + "/a/b", "1");
            b.delete().forPath(tree + "/a/b");
            recursive.next(EventType.NodeCreated, tree + "/a");
            recursive.next(EventType.NodeCreated, tree + "/a/b");
            recursive.next(EventType.NodeDataChanged, tree + "/a/b");
            recursive.once(EventType.NodeDeleted, tree + "/a/b");
            cache(run, a, b, Cf.make(b, root + "/cached", "0"));
        });
        run.step("removed", () -> {
            a.watchers().remove(watch).ofType(WatcherType.Any).forPath(node);
            a.watchers().remove(recursive).ofType(WatcherType.Any).forPath(tree);
            // Told to the watcher itself when it is removed.
            watch.next(EventType.PersistentWatchRemoved, node);
            recursive.next(EventType.PersistentWatchRemoved, tree);
            Cf.set(b, node, "3");
            Cf.make(b, tree + "/c", "");
            watch.silent(1000);
            recursive.silent(10);
        });
        run.step("remove-none", () -> refused("removing", NoWatcherException.class, () -> a.watchers().remove(watch).ofType(WatcherType.Any).forPath(node)));
        run.note("remove-none: the Java client refuses this itself, the server is not asked");
    }

    /** The recipe that stands on these watches. */
    private static void cache(Run run, CuratorFramework a, CuratorFramework b, String path) throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        CuratorCache cache = run.own(CuratorCache.build(a, path));
        cache.listenable().addListener(CuratorCacheListener.builder()
                .forCreates(node -> told.add("created " + node.getPath() + " " + new String(node.getData())))
                .forChanges((old, node) -> told.add("changed " + node.getPath() + " " + new String(old.getData()) + " " + new String(node.getData())))
                .forDeletes(node -> told.add("deleted " + node.getPath()))
                .forInitialized(() -> told.add("initialized")).build());
        cache.start();
        told(told, "created " + path + " 0");
        told(told, "initialized");
        Cf.make(b, path + "/x", "1");
        told(told, "created " + path + "/x 1");
        Cf.make(b, path + "/x/y", "2");
        told(told, "created " + path + "/x/y 2");
        Cf.set(b, path + "/x/y", "3");
        told(told, "changed " + path + "/x/y 2 3");
        b.delete().forPath(path + "/x/y");
        told(told, "deleted " + path + "/x/y");
        equal("size of the cache", 2, cache.size());
        cache.close();
    }

    private static void told(BlockingQueue<String> told, String wanted) throws InterruptedException {
        equal("told by the cache", wanted, told.poll(3, TimeUnit.SECONDS));
    }
}
