package compat.curator;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.BadVersionException;
import org.apache.zookeeper.KeeperException.NoChildrenForEphemeralsException;
import org.apache.zookeeper.KeeperException.NoNodeException;
import org.apache.zookeeper.KeeperException.NodeExistsException;
import org.apache.zookeeper.KeeperException.NotEmptyException;
import org.apache.zookeeper.data.Stat;

public final class Data implements Scenario {
    private final byte[] all = new byte[256];
    private CuratorFramework client;
    private String root;
    private String node;
    private String parent;
    private Stat made;
    private Stat parentStat;

    @Override
    public void run(Run run) throws Exception {
        for (int i = 0; i < all.length; i++) {
            all[i] = (byte) i;
        }
        client = Cf.connect(run);
        root = Cf.root(run, client);
        node = root + "/node";
        parent = root + "/parent";
        run.step("create", () -> equal("path", node, client.create().forPath(node, all)));
        run.step("get", () -> {
            made = new Stat();
            equal("value", all, client.getData().storingStatIn(made).forPath(node));
            holds("czxid", made.getCzxid() > 0, made.getCzxid());
            holds("ctime within 60 s of now", Math.abs(System.currentTimeMillis() - made.getCtime()) < 60_000, made.getCtime());
            equal("stat", new Stat(made.getCzxid(), made.getCzxid(), made.getCtime(), made.getCtime(), 0, 0, 0, 0, 256, 0, made.getCzxid()), made);
        });
        run.step("set", () -> {
            Stat set = client.setData().withVersion(0).forPath(node, all);
            holds("mzxid > czxid", set.getMzxid() > set.getCzxid(), set);
            holds("mtime >= ctime", set.getMtime() >= set.getCtime(), set);
            made = new Stat(made.getCzxid(), set.getMzxid(), made.getCtime(), set.getMtime(), 1, 0, 0, 0, 256, 0, made.getPzxid());
            equal("stat", made, set);
        });
        run.step("bad-version", () -> {
            refused("set", BadVersionException.class, () -> client.setData().withVersion(7).forPath(node, new byte[1]));
            refused("delete", BadVersionException.class, () -> client.delete().withVersion(7).forPath(node));
            Stat stat = new Stat();
            equal("value", all, client.getData().storingStatIn(stat).forPath(node));
            equal("stat", made, stat);
        });
        run.step("any-version", () -> {
            made = client.setData().withVersion(-1).forPath(node, all);
            equal("version", 2, made.getVersion());
        });
        run.step("exists", () -> {
            equal("stat", made, client.checkExists().forPath(node));
            equal("stat of a missing node", null, client.checkExists().forPath(root + "/missing"));
        });
        run.step("no-node", () -> {
            String missing = root + "/missing";
            refused("get", NoNodeException.class, () -> client.getData().forPath(missing));
            refused("set", NoNodeException.class, () -> client.setData().forPath(missing, all));
            refused("delete", NoNodeException.class, () -> client.delete().forPath(missing));
            refused("children", NoNodeException.class, () -> client.getChildren().forPath(missing));
            refused("create below", NoNodeException.class, () -> Cf.make(client, missing + "/child", ""));
        });
        run.step("node-exists", () -> {
            refused("create", NodeExistsException.class, () -> Cf.make(client, node, ""));
            equal("path of create or set", node, client.create().orSetData().forPath(node, Cf.bytes("set instead")));
            equal("value of create or set", "set instead", Cf.get(client, node));
        });
        run.step("empty-data", () -> {
            String empty = Cf.make(client, root + "/empty", "");
            Stat stat = new Stat();
            equal("value", new byte[0], client.getData().storingStatIn(stat).forPath(empty));
            equal("dataLength", 0, stat.getDataLength());
        });
        run.step("large-data", () -> {
            byte[] large = new byte[1_000_000];
            for (int i = 0; i < large.length; i++) {
                large[i] = (byte) (i % 251);
            }
            client.create().forPath(root + "/large", large);
            Stat stat = new Stat();
            equal("value", large, client.getData().storingStatIn(stat).forPath(root + "/large"));
            equal("dataLength", 1_000_000, stat.getDataLength());
            Cf.make(client, root + "/packed", "");
            client.setData().compressed().forPath(root + "/packed", large);
            equal("value that Curator compressed", large, client.getData().decompressed().forPath(root + "/packed"));
        });
        run.step("children", () -> {
            Cf.make(client, parent, "p");
            for (String name : List.of("a", "b", "c")) {
                Cf.make(client, parent + "/" + name, "");
            }
            equal("children", List.of("a", "b", "c"), Cf.children(client, parent));
            parentStat = client.checkExists().forPath(parent);
            equal("numChildren", 3, parentStat.getNumChildren());
            equal("cversion", 3, parentStat.getCversion());
            equal("pzxid", client.checkExists().forPath(parent + "/c").getCzxid(), parentStat.getPzxid());
        });
        run.step("child-deleted", () -> {
            client.delete().guaranteed().forPath(parent + "/b");
            Stat stat = client.checkExists().forPath(parent);
            equal("numChildren", 2, stat.getNumChildren());
            equal("cversion", 4, stat.getCversion());
            holds("pzxid greater than " + parentStat.getPzxid(), stat.getPzxid() > parentStat.getPzxid(), stat.getPzxid());
            equal("mzxid", parentStat.getMzxid(), stat.getMzxid());
            equal("version", parentStat.getVersion(), stat.getVersion());
            parentStat = stat;
        });
        run.step("child-changed", () -> {
            Cf.set(client, parent + "/a", "changed");
            equal("stat of the parent", parentStat, client.checkExists().forPath(parent));
        });
        run.step("not-empty", () -> refused("delete", NotEmptyException.class, () -> client.delete().forPath(parent)));
        run.step("sequential", () -> {
            String queue = Cf.make(client, root + "/queue", "");
            equal("first", queue + "/x-0000000000", next("/queue/x-"));
            equal("second", queue + "/x-0000000001", next("/queue/x-"));
            equal("third", queue + "/y-0000000002", next("/queue/y-"));
        });
        run.step("sequential-after", () -> {
            client.delete().forPath(root + "/queue/y-0000000002");
            equal("next", root + "/queue/x-0000000003", next("/queue/x-"));
        });
        run.step("ephemeral", () -> {
            client.create().withMode(CreateMode.EPHEMERAL).forPath(root + "/mine", new byte[0]);
            equal("owner", Cf.session(client), client.checkExists().forPath(root + "/mine").getEphemeralOwner());
            // Curator's protection: the name begins with an id, by which a create is found again whose reply was lost.
            String guarded = client.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(root + "/queue/g-", new byte[0]);
            holds("protected name", guarded.matches(root + "/queue/_c_[0-9a-f-]{36}-g-0000000004"), guarded);
        });
        run.step("no-children", () -> refused("create", NoChildrenForEphemeralsException.class, () -> Cf.make(client, root + "/mine/child", "")));
        run.step("bad-path", () -> {
            for (String path : List.of(root + "//b", root + "/../b")) {
                refused("create of " + path, IllegalArgumentException.class, () -> Cf.make(client, path, ""));
            }
            equal("the session goes on", true, Cf.there(client, node));
        });
        run.step("sync", () -> {
            CuratorFramework other = Cf.connect(run);
            Cf.set(other, node, "by another");
            CompletableFuture<Integer> synced = new CompletableFuture<>();
            client.sync().inBackground((c, event) -> synced.complete(event.getResultCode())).forPath(node);
            equal("result of sync", 0, synced.get(5, TimeUnit.SECONDS));
            equal("value", "by another", Cf.get(client, node));
        });
        run.step("delete", () -> {
            client.delete().deletingChildrenIfNeeded().forPath(root);
            equal("the root is there", false, Cf.there(client, root));
        });
    }

    private String next(String below) throws Exception {
        return client.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(root + below, new byte[0]);
    }
}
