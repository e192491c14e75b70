package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.EventType;

/** The newer cache, on persistent watches, and the older ones, on watches set anew; each by two readers. */
@SuppressWarnings("deprecation") // NodeCache, PathChildrenCache and TreeCache: applications still use them.
public final class RecipesCaches implements Scenario {
    private Run run;
    private CuratorFramework writer;
    private CuratorFramework far;
    private CuratorFramework near;
    private CuratorFramework olderFar;
    private CuratorFramework olderNear;
    private String root;

    @Override
    public void run(Run run) throws Exception {
        this.run = run;
        writer = Cf.connect(run);
        far = Cf.connect(run, run.link(), Cf.SESSION_MILLIS);
        near = Cf.connect(run);
        // Sessions of their own: before 3.9 a server keeps one mode of watch for a path of a session, the last one set.
        olderFar = Cf.connect(run, run.link(), Cf.SESSION_MILLIS);
        olderNear = Cf.connect(run);
        root = Cf.root(run, writer);
        String node = root + "/node";
        String parent = root + "/parent";
        String tree = root + "/tree";
        String watched = root + "/watched";
        List<Told> nodes = new ArrayList<>();
        List<Told> children = new ArrayList<>();
        List<Told> trees = new ArrayList<>();
        List<Told> persistent = new ArrayList<>();
        List<CuratorCache> caches = new ArrayList<>();
        List<TreeCache> olderTrees = new ArrayList<>();
        run.step("node", () -> {
            Cf.make(writer, node, "0");
            for (CuratorFramework reader : List.of(far, near)) {
                nodes.add(cached(reader, node, CuratorCache.Options.SINGLE_NODE_CACHE));
            }
            for (CuratorFramework reader : List.of(olderFar, olderNear)) {
                nodes.add(nodeCache(reader, node));
            }
            next(nodes, "made  0");
            for (int i = 1; i <= 3; i++) {
                Cf.set(writer, node, "" + i);
                next(nodes, "changed  " + i);
            }
            writer.delete().forPath(node);
            next(nodes, "gone ");
            Cf.make(writer, node, "again");
            next(nodes, "made  again");
            silent(nodes);
        });
        run.step("children", () -> {
            Cf.make(writer, parent, "");
            Cf.make(writer, parent + "/old", "old");
            for (CuratorFramework reader : List.of(olderFar, olderNear)) {
                children.add(pathChildrenCache(reader, parent));
            }
            next(children, "made /old old");
            Cf.make(writer, parent + "/new", "new");
            next(children, "made /new new");
            writer.delete().forPath(parent + "/old");
            next(children, "gone /old");
            silent(children);
        });
        run.lacks("patient", "Curator has no watcher that waits for quiet");
        run.step("tree", () -> {
            Cf.make(writer, tree, "root");
            Cf.make(writer, tree + "/one", "1");
            for (CuratorFramework reader : List.of(far, near)) {
                Told told = new Told();
                CuratorCache cache = run.own(CuratorCache.build(reader, tree));
                cache.listenable().addListener(listener(told, tree));
                cache.start();
                caches.add(cache);
                trees.add(told);
            }
            for (CuratorFramework reader : List.of(olderFar, olderNear)) {
                trees.add(treeCache(reader, tree, olderTrees));
            }
            next(trees, "made  root");
            next(trees, "made /one 1");
            next(trees, "whole");
            Cf.make(writer, tree + "/one/deep", "2");
            next(trees, "made /one/deep 2");
            Cf.set(writer, tree + "/one/deep", "3");
            next(trees, "changed /one/deep 3");
            writer.delete().forPath(tree + "/one/deep");
            next(trees, "gone /one/deep");
            writer.delete().forPath(tree + "/one");
            next(trees, "gone /one");
            silent(trees);
        });
        run.step("persistent", () -> {
            for (CuratorFramework reader : List.of(far, near)) {
                Told told = new Told();
                PersistentWatcher watcher = run.own(new PersistentWatcher(reader, watched, true));
                watcher.getListenable().addListener(event -> told.event(event, watched));
                java.util.concurrent.CountDownLatch set = new java.util.concurrent.CountDownLatch(1);
                watcher.getResetListenable().addListener(set::countDown);
                watcher.start();
                equal("the watch is set", true, set.await(5, TimeUnit.SECONDS));
                persistent.add(told);
            }
            Cf.make(writer, watched, "");
            next(persistent, "NodeCreated ");
            Cf.make(writer, watched + "/below", "");
            next(persistent, "NodeCreated /below");
            Cf.set(writer, watched + "/below", "x");
            next(persistent, "NodeDataChanged /below");
            writer.delete().forPath(watched + "/below");
            next(persistent, "NodeDeleted /below");
            silent(persistent);
        });
        run.step("away", () -> {
            Cf.make(writer, tree + "/changes", "before");
            next(trees, "made /changes before");
            Cf.make(writer, tree + "/goes", "before");
            next(trees, "made /goes before");
            List<CuratorFramework> cut = List.of(far, olderFar);
            List<Long> sessions = sessions(cut);
            List<States> states = cut.stream().map(States::of).toList();
            run.fault("cut");
            for (States one : states) {
                one.next(ConnectionState.SUSPENDED, 10_000);
            }
            Cf.make(writer, tree + "/comes", "new");
            Cf.set(writer, tree + "/changes", "after");
            writer.delete().forPath(tree + "/goes");
            Cf.set(writer, node, "missed");
            Cf.make(writer, parent + "/missed", "");
            Run.pause(2000);
            run.fault("mend");
            for (States one : states) {
                one.next(ConnectionState.RECONNECTED, 10_000);
            }
            equal("sessions", sessions, sessions(cut));
            Map<String, String> wanted = new TreeMap<>(Map.of("", "root", "/changes", "after", "/comes", "new"));
            for (CuratorCache cache : caches) {
                eventually("the tree in the newer cache", 5000, wanted, () -> content(tree, cache.stream().toList()));
            }
            for (TreeCache cache : olderTrees) {
                eventually("the tree in the older cache", 5000, wanted, () -> {
                    List<ChildData> all = new ArrayList<>(List.of(cache.getCurrentData(tree)));
                    all.addAll(cache.getCurrentChildren(tree).values());
                    return content(tree, all);
                });
            }
            next(nodes, "changed  missed");
            next(children, "made /missed ");
        });
        run.step("after", () -> {
            for (Told told : trees) {
                told.forget();
            }
            for (Told told : persistent) {
                told.forget();
            }
            Cf.set(writer, tree + "/comes", "once more");
            next(trees, "changed /comes once more");
            Cf.set(writer, node, "last");
            next(nodes, "changed  last");
            writer.delete().forPath(parent + "/missed");
            next(children, "gone /missed");
            Cf.set(writer, watched, "last");
            next(persistent, "NodeDataChanged ");
            for (List<Told> all : List.of(trees, nodes, children, persistent)) {
                silent(all);
            }
        });
    }

    private static List<Long> sessions(List<CuratorFramework> clients) throws Exception {
        List<Long> sessions = new ArrayList<>();
        for (CuratorFramework client : clients) {
            sessions.add(Cf.session(client));
        }
        return sessions;
    }

    private static void next(List<Told> all, String wanted) throws InterruptedException {
        for (Told told : all) {
            told.next(wanted);
        }
    }

    private static void silent(List<Told> all) throws InterruptedException {
        Run.pause(300);
        for (Told told : all) {
            told.silent();
        }
    }

    private static Map<String, String> content(String below, List<ChildData> nodes) {
        Map<String, String> content = new TreeMap<>();
        nodes.forEach(node -> content.put(node.getPath().substring(below.length()), text(node)));
        return content;
    }

    private static String text(ChildData node) {
        return node.getData() == null ? "" : new String(node.getData(), StandardCharsets.UTF_8);
    }

    private Told cached(CuratorFramework client, String path, CuratorCache.Options option) {
        Told told = new Told();
        CuratorCache cache = run.own(CuratorCache.build(client, path, option));
        cache.listenable().addListener(CuratorCacheListener.builder().forAll((type, before, now) -> told.change(type, path, before, now)).build());
        cache.start();
        return told;
    }

    private static CuratorCacheListener listener(Told told, String path) {
        return new CuratorCacheListener() {
            @Override
            public void event(Type type, ChildData before, ChildData now) {
                told.change(type, path, before, now);
            }

            @Override
            public void initialized() {
                told.add("whole");
            }
        };
    }

    private Told nodeCache(CuratorFramework client, String path) throws Exception {
        Told told = new Told();
        NodeCache cache = run.own(new NodeCache(client, path));
        boolean[] there = {false};
        cache.getListenable().addListener(() -> {
            ChildData now = cache.getCurrentData();
            told.add(now == null ? "gone " : (there[0] ? "changed  " : "made  ") + text(now));
            there[0] = now != null;
        });
        cache.start();
        return told;
    }

    private Told pathChildrenCache(CuratorFramework client, String path) throws Exception {
        Told told = new Told();
        PathChildrenCache cache = run.own(new PathChildrenCache(client, path, true));
        cache.getListenable().addListener((of, event) -> {
            switch (event.getType()) {
                case CHILD_ADDED -> told.add("made " + event.getData().getPath().substring(path.length()) + " " + text(event.getData()));
                case CHILD_UPDATED -> told.add("changed " + event.getData().getPath().substring(path.length()) + " " + text(event.getData()));
                case CHILD_REMOVED -> told.add("gone " + event.getData().getPath().substring(path.length()));
                default -> {} // of the connection
            }
        });
        cache.start();
        return told;
    }

    private Told treeCache(CuratorFramework client, String path, List<TreeCache> into) throws Exception {
        Told told = new Told();
        TreeCache cache = run.own(new TreeCache(client, path));
        cache.getListenable().addListener((of, event) -> {
            switch (event.getType()) {
                case NODE_ADDED -> told.add("made " + event.getData().getPath().substring(path.length()) + " " + text(event.getData()));
                case NODE_UPDATED -> told.add("changed " + event.getData().getPath().substring(path.length()) + " " + text(event.getData()));
                case NODE_REMOVED -> told.add("gone " + event.getData().getPath().substring(path.length()));
                case INITIALIZED -> told.add("whole");
                default -> {} // of the connection
            }
        });
        cache.start();
        into.add(cache);
        return told;
    }

    /** What one reader was told, in order. */
    private static final class Told {
        private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();

        void add(String line) {
            lines.add(line);
        }

        void change(CuratorCacheListener.Type type, String below, ChildData before, ChildData now) {
            ChildData of = now == null ? before : now;
            String path = of.getPath().substring(below.length());
            switch (type) {
                case NODE_CREATED -> add("made " + path + " " + text(now));
                case NODE_CHANGED -> add("changed " + path + " " + text(now));
                case NODE_DELETED -> add("gone " + path);
            }
        }

        void event(WatchedEvent event, String below) {
            if (event.getType() != EventType.None) {
                add(event.getType() + " " + event.getPath().substring(below.length()));
            }
        }

        void next(String wanted) throws InterruptedException {
            equal("told within 5 s", wanted, lines.poll(5, TimeUnit.SECONDS));
        }

        void silent() {
            equal("told more", null, lines.poll());
        }

        void forget() {
            lines.clear();
        }
    }
}
