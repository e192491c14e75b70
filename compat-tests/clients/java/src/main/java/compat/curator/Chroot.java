package compat.curator;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.KeeperException.NoNodeException;
import org.apache.zookeeper.Watcher.Event.EventType;

/** By the connect string's suffix and by Curator's namespace. */
public final class Chroot implements Scenario {
    private CuratorFramework suffix;
    private CuratorFramework namespace;

    @Override
    public void run(Run run) throws Exception {
        CuratorFramework whole = Cf.connect(run);
        String root = Cf.root(run, whole);
        run.step("missing", () -> {
            CuratorFramework client = Cf.connect(run, run.address() + root + "/missing", Cf.SESSION_MILLIS);
            refused("create", NoNodeException.class, () -> Cf.make(client, "/node", ""));
            // A namespace is made by Curator where it is missing.
            CuratorFramework named = Cf.start(run, Cf.builder(run.address(), Cf.SESSION_MILLIS).namespace(root.substring(1) + "/made"));
            equal("path", "/node", Cf.make(named, "/node", ""));
            equal("the namespace is there", true, Cf.there(whole, root + "/made/node"));
        });
        run.step("works", () -> {
            suffix = Cf.connect(run, run.address() + Cf.make(whole, root + "/home", ""), Cf.SESSION_MILLIS);
            works(whole, suffix, root + "/home");
            Cf.make(whole, root + "/named", "");
            namespace = Cf.start(run, Cf.builder(run.address(), Cf.SESSION_MILLIS).namespace(root.substring(1) + "/named"));
            works(whole, namespace, root + "/named");
        });
        run.step("watch", () -> {
            watch(whole, suffix, root + "/home");
            watch(whole, namespace, root + "/named");
        });
    }

    private static void works(CuratorFramework whole, CuratorFramework inside, String home) throws Exception {
        equal("path", "/node", Cf.make(inside, "/node", "value"));
        equal("value", "value", Cf.get(inside, "/node"));
        equal("children", List.of("node"), Cf.children(inside, "/"));
        equal("value by the whole path", "value", Cf.get(whole, home + "/node"));
        equal("children by the whole path", List.of("node"), Cf.children(whole, home));
    }

    private static void watch(CuratorFramework whole, CuratorFramework inside, String home) throws Exception {
        Events watch = new Events();
        inside.getData().usingWatcher(watch).forPath("/node");
        Cf.set(whole, home + "/node", "changed");
        watch.once(EventType.NodeDataChanged, "/node");
        inside.getChildren().usingWatcher(watch).forPath("/");
        Cf.make(whole, home + "/other", "");
        watch.once(EventType.NodeChildrenChanged, "/");
    }
}
