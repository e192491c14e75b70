package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooKeeper;

public final class WatchChildren implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        ZooKeeper a = Zk.connect(run);
        ZooKeeper b = Zk.connect(run);
        String root = Zk.root(run, b);
        String parent = Zk.make(b, root + "/parent", "");
        String child = parent + "/child";
        Events watch = new Events();
        run.step("created", () -> {
            a.getChildren(parent, watch);
            Zk.make(b, child, "");
            watch.once(EventType.NodeChildrenChanged, parent);
        });
        run.step("deleted", () -> {
            a.getChildren(parent, watch);
            b.delete(child, -1);
            watch.once(EventType.NodeChildrenChanged, parent);
        });
        run.step("data-silent", () -> {
            Zk.make(b, child, "");
            a.getChildren(parent, watch);
            Zk.set(b, child, "1");
            Zk.set(b, parent, "1");
            watch.silent(1000);
        });
        run.step("grandchild-silent", () -> {
            a.getChildren(parent, watch);
            Zk.make(b, child + "/grandchild", "");
            watch.silent(1000);
        });
        run.step("parent-deleted", () -> {
            String brief = Zk.make(b, root + "/brief", "");
            a.getChildren(brief, watch);
            b.delete(brief, -1);
            watch.once(EventType.NodeDeleted, brief);
        });
        run.step("ephemeral", () -> {
            String home = Zk.make(b, root + "/home", "");
            ZooKeeper brief = Zk.connect(run);
            Zk.make(brief, home + "/mine", "", CreateMode.EPHEMERAL);
            a.getChildren(home, watch);
            long start = System.nanoTime();
            brief.close();
            watch.next(EventType.NodeChildrenChanged, home);
            long took = (System.nanoTime() - start) / 1_000_000;
            holds("milliseconds to the event, up to 2000", took <= 2000, took);
            watch.silent(500);
        });
        run.step("follow", () -> {
            String many = Zk.make(b, root + "/many", "");
            Set<String> wanted = new HashSet<>();
            Events events = new Events();
            Set<String> seen = new HashSet<>(a.getChildren(many, events));
            equal("children at first", Set.of(), seen);
            List<String> names = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                names.add("c" + i);
            }
            wanted.addAll(names);
            Thread writer = Run.daemon("writer", () -> {
                for (String name : names) {
                    Zk.make(b, many + "/" + name, "");
                }
            });
            while (!seen.equals(wanted)) {
                events.next(EventType.NodeChildrenChanged, many);
                Set<String> next = new HashSet<>(a.getChildren(many, events));
                holds("the list grows with each event: " + seen, next.containsAll(seen) && next.size() > seen.size(), next);
                seen = next;
            }
            writer.join();
            events.silent(500);
        });
    }
}
