package compat.curator;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class WatchChildren implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        CuratorFramework a = Cf.connect(run);
        CuratorFramework b = Cf.connect(run);
        String root = Cf.root(run, b);
        String parent = Cf.make(b, root + "/parent", "");
        String child = parent + "/child";
        Events watch = new Events();
        run.step("created", () -> {
            a.getChildren().usingWatcher(watch).forPath(parent);
            Cf.make(b, child, "");
            watch.once(EventType.NodeChildrenChanged, parent);
        });
        run.step("deleted", () -> {
            a.getChildren().usingWatcher(watch).forPath(parent);
            b.delete().forPath(child);
            watch.once(EventType.NodeChildrenChanged, parent);
        });
        run.step("data-silent", () -> {
            Cf.make(b, child, "");
            a.getChildren().usingWatcher(watch).forPath(parent);
            Cf.set(b, child, "1");
            Cf.set(b, parent, "1");
            watch.silent(1000);
        });
        run.step("grandchild-silent", () -> {
            a.getChildren().usingWatcher(watch).forPath(parent);
            Cf.make(b, child + "/grandchild", "");
            watch.silent(1000);
        });
        run.step("parent-deleted", () -> {
            String brief = Cf.make(b, root + "/brief", "");
            a.getChildren().usingWatcher(watch).forPath(brief);
            b.delete().forPath(brief);
            watch.once(EventType.NodeDeleted, brief);
        });
        run.step("ephemeral", () -> {
            String home = Cf.make(b, root + "/home", "");
            CuratorFramework brief = Cf.connect(run);
            brief.create().withMode(CreateMode.EPHEMERAL).forPath(home + "/mine", new byte[0]);
            a.getChildren().usingWatcher(watch).forPath(home);
            long start = System.nanoTime();
            brief.close();
            watch.next(EventType.NodeChildrenChanged, home);
            long took = (System.nanoTime() - start) / 1_000_000;
            holds("milliseconds to the event, up to 2000", took <= 2000, took);
            watch.silent(500);
        });
        run.step("follow", () -> {
            String many = Cf.make(b, root + "/many", "");
            List<String> names = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                names.add("c" + i);
            }
            Set<String> wanted = new HashSet<>(names);
            Events events = new Events();
            Set<String> seen = new HashSet<>(a.getChildren().usingWatcher(events).forPath(many));
            equal("children at first", Set.of(), seen);
            Thread writer = Run.daemon("writer", () -> {
                for (String name : names) {
                    Cf.make(b, many + "/" + name, "");
                }
            });
            while (!seen.equals(wanted)) {
                events.next(EventType.NodeChildrenChanged, many);
                Set<String> next = new HashSet<>(a.getChildren().usingWatcher(events).forPath(many));
                holds("the list grows with each event: " + seen, next.containsAll(seen) && next.size() > seen.size(), next);
                seen = next;
            }
            writer.join();
            events.silent(500);
        });
    }
}
