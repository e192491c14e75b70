package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.BadVersionException;
import org.apache.zookeeper.KeeperException.NodeExistsException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

public final class Multi implements Scenario {
    private NodeExistsException failure;

    @Override
    public void run(Run run) throws Exception {
        ZooKeeper client = Zk.connect(run);
        String root = Zk.root(run, client);
        String p = root + "/p";
        String x = root + "/x";
        run.step("all", () -> {
            List<OpResult> results = client.multi(List.of(create(p), create(p + "/c"), Op.setData(p + "/c", new byte[1], 0), Op.check(p + "/c", 1), Op.delete(p + "/c", 1)));
            equal("results", 5, results.size());
            equal("create P", p, ((OpResult.CreateResult) results.get(0)).getPath());
            equal("create P/c", p + "/c", ((OpResult.CreateResult) results.get(1)).getPath());
            equal("version set", 1, ((OpResult.SetDataResult) results.get(2)).getStat().getVersion());
            equal("check", OpResult.CheckResult.class, results.get(3).getClass());
            equal("delete", OpResult.DeleteResult.class, results.get(4).getClass());
            equal("children", List.of("p"), Zk.children(client, root));
            equal("children of P", List.of(), Zk.children(client, p));
        });
        run.step("one-zxid", () -> {
            client.multi(List.of(create(root + "/one"), create(root + "/two")));
            equal("czxid", client.exists(root + "/one", false).getCzxid(), client.exists(root + "/two", false).getCzxid());
        });
        run.step("none", () -> {
            failure = refused("multi", NodeExistsException.class, () -> client.multi(List.of(create(x), create(p), create(root + "/y"))));
            equal("X is there", false, Zk.there(client, x));
        });
        run.step("which", () -> {
            // What comes before the failure has code 0 in the server's answer, what comes after it -2.
            List<Integer> codes = failure.getResults().stream().map(result -> ((OpResult.ErrorResult) result).getErr()).toList();
            equal("codes", List.of(KeeperException.Code.OK.intValue(), KeeperException.Code.NODEEXISTS.intValue(), KeeperException.Code.RUNTIMEINCONSISTENCY.intValue()), codes);
        });
        run.step("check-fails", () -> {
            refused("multi", BadVersionException.class, () -> client.multi(List.of(Op.check(p, 9), create(x))));
            equal("X is there", false, Zk.there(client, x));
        });
        run.step("order", () -> {
            String y = root + "/y";
            client.multi(List.of(create(y), Op.setData(y, Zk.bytes("1"), 0), Op.setData(y, Zk.bytes("2"), 1)));
            equal("value", "2", Zk.get(client, y));
            equal("version", 2, client.exists(y, false).getVersion());
        });
        run.step("sequential", () -> {
            String queue = Zk.make(client, root + "/queue", "");
            Op next = Op.create(queue + "/n-", new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL);
            List<String> paths = client.multi(List.of(next, next)).stream().map(result -> ((OpResult.CreateResult) result).getPath()).toList();
            equal("paths", List.of(queue + "/n-0000000000", queue + "/n-0000000001"), paths);
            equal("children", List.of("n-0000000000", "n-0000000001"), Zk.children(client, queue));
        });
        run.step("silent", () -> {
            String home = Zk.make(client, root + "/home", "");
            Events watch = new Events();
            client.getChildren(home, watch);
            refused("multi", NodeExistsException.class, () -> client.multi(List.of(create(home + "/a"), create(p))));
            watch.silent(1000);
            client.multi(List.of(create(home + "/a"), create(home + "/b")));
            watch.once(EventType.NodeChildrenChanged, home);
        });
    }

    private static Op create(String path) {
        return Op.create(path, new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
    }
}
