package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.BadVersionException;
import org.apache.zookeeper.KeeperException.NoChildrenForEphemeralsException;
import org.apache.zookeeper.KeeperException.NoNodeException;
import org.apache.zookeeper.KeeperException.NodeExistsException;
import org.apache.zookeeper.KeeperException.NotEmptyException;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

public final class Data implements Scenario {
    private final byte[] all = new byte[256];
    private ZooKeeper client;
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
        client = Zk.connect(run);
        root = Zk.root(run, client);
        node = root + "/node";
        parent = root + "/parent";
        run.step("create", () -> equal("path", node, client.create(node, all, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT)));
        run.step("get", () -> {
            made = new Stat();
            equal("value", all, client.getData(node, false, made));
            holds("czxid", made.getCzxid() > 0, made.getCzxid());
            holds("ctime within 60 s of now", Math.abs(System.currentTimeMillis() - made.getCtime()) < 60_000, made.getCtime());
            equal("stat", new Stat(made.getCzxid(), made.getCzxid(), made.getCtime(), made.getCtime(), 0, 0, 0, 0, 256, 0, made.getCzxid()), made);
        });
        run.step("set", () -> {
            Stat set = client.setData(node, all, 0);
            holds("mzxid > czxid", set.getMzxid() > set.getCzxid(), set);
            holds("mtime >= ctime", set.getMtime() >= set.getCtime(), set);
            made = new Stat(made.getCzxid(), set.getMzxid(), made.getCtime(), set.getMtime(), 1, 0, 0, 0, 256, 0, made.getPzxid());
            equal("stat", made, set);
        });
        run.step("bad-version", () -> {
            refused("set", BadVersionException.class, () -> client.setData(node, new byte[1], 7));
            refused("delete", BadVersionException.class, () -> delete(node, 7));
            Stat stat = new Stat();
            equal("value", all, client.getData(node, false, stat));
            equal("stat", made, stat);
        });
        run.step("any-version", () -> {
            made = client.setData(node, all, -1);
            equal("version", 2, made.getVersion());
        });
        run.step("exists", () -> {
            Stat stat = new Stat();
            client.getData(node, false, stat);
            equal("stat", stat, client.exists(node, false));
            equal("stat", made, stat);
            equal("stat of a missing node", null, client.exists(root + "/missing", false));
        });
        run.step("no-node", () -> {
            String missing = root + "/missing";
            refused("get", NoNodeException.class, () -> client.getData(missing, false, null));
            refused("set", NoNodeException.class, () -> client.setData(missing, all, -1));
            refused("delete", NoNodeException.class, () -> delete(missing, -1));
            refused("children", NoNodeException.class, () -> client.getChildren(missing, false));
            refused("create below", NoNodeException.class, () -> Zk.make(client, missing + "/child", ""));
        });
        run.step("node-exists", () -> refused("create", NodeExistsException.class, () -> Zk.make(client, node, "")));
        run.step("empty-data", () -> {
            String empty = Zk.make(client, root + "/empty", "");
            Stat stat = new Stat();
            equal("value", new byte[0], client.getData(empty, false, stat));
            equal("dataLength", 0, stat.getDataLength());
        });
        run.step("large-data", () -> {
            byte[] large = new byte[1_000_000];
            for (int i = 0; i < large.length; i++) {
                large[i] = (byte) (i % 251);
            }
            client.create(root + "/large", large, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            Stat stat = new Stat();
            equal("value", large, client.getData(root + "/large", false, stat));
            equal("dataLength", 1_000_000, stat.getDataLength());
        });
        run.step("children", () -> {
            Zk.make(client, parent, "p");
            for (String name : List.of("a", "b", "c")) {
                Zk.make(client, parent + "/" + name, "");
            }
            equal("children", List.of("a", "b", "c"), Zk.children(client, parent));
            parentStat = client.exists(parent, false);
            equal("numChildren", 3, parentStat.getNumChildren());
            equal("cversion", 3, parentStat.getCversion());
            equal("pzxid", client.exists(parent + "/c", false).getCzxid(), parentStat.getPzxid());
        });
        run.step("child-deleted", () -> {
            delete(parent + "/b", -1);
            Stat stat = client.exists(parent, false);
            equal("numChildren", 2, stat.getNumChildren());
            equal("cversion", 4, stat.getCversion());
            holds("pzxid greater than " + parentStat.getPzxid(), stat.getPzxid() > parentStat.getPzxid(), stat.getPzxid());
            equal("mzxid", parentStat.getMzxid(), stat.getMzxid());
            equal("version", parentStat.getVersion(), stat.getVersion());
            parentStat = stat;
        });
        run.step("child-changed", () -> {
            Zk.set(client, parent + "/a", "changed");
            equal("stat of the parent", parentStat, client.exists(parent, false));
        });
        run.step("not-empty", () -> refused("delete", NotEmptyException.class, () -> delete(parent, -1)));
        run.step("sequential", () -> {
            String queue = Zk.make(client, root + "/queue", "");
            equal("first", queue + "/x-0000000000", Zk.make(client, queue + "/x-", "", CreateMode.PERSISTENT_SEQUENTIAL));
            equal("second", queue + "/x-0000000001", Zk.make(client, queue + "/x-", "", CreateMode.PERSISTENT_SEQUENTIAL));
            equal("third", queue + "/y-0000000002", Zk.make(client, queue + "/y-", "", CreateMode.PERSISTENT_SEQUENTIAL));
        });
        run.step("sequential-after", () -> {
            delete(root + "/queue/y-0000000002", -1);
            equal("next", root + "/queue/x-0000000003", Zk.make(client, root + "/queue/x-", "", CreateMode.PERSISTENT_SEQUENTIAL));
        });
        run.step("ephemeral", () -> {
            Zk.make(client, root + "/mine", "", CreateMode.EPHEMERAL);
            equal("owner", client.getSessionId(), client.exists(root + "/mine", false).getEphemeralOwner());
        });
        run.step("no-children", () -> refused("create", NoChildrenForEphemeralsException.class, () -> Zk.make(client, root + "/mine/child", "")));
        run.step("bad-path", () -> {
            for (String path : List.of(root + "//b", root + "/../b")) {
                refused("create of " + path, IllegalArgumentException.class, () -> Zk.make(client, path, ""));
            }
            equal("the session goes on", true, Zk.there(client, node));
        });
        run.step("sync", () -> {
            ZooKeeper other = Zk.connect(run);
            Zk.set(other, node, "by another");
            client.sync(node);
            equal("value", "by another", Zk.get(client, node));
        });
        run.step("delete", () -> {
            deleteAll(root);
            equal("the root is there", false, Zk.there(client, root));
        });
    }

    private Object delete(String path, int version) throws Exception {
        client.delete(path, version);
        return "deleted";
    }

    private void deleteAll(String path) throws Exception {
        for (String name : Zk.children(client, path)) {
            deleteAll(path + "/" + name);
        }
        delete(path, -1);
    }
}
