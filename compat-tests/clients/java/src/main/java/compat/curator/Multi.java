package compat.curator;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.transaction.CuratorOp;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.api.transaction.OperationType;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.BadVersionException;
import org.apache.zookeeper.KeeperException.NodeExistsException;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class Multi implements Scenario {
    private CuratorFramework client;
    private NodeExistsException failure;

    @Override
    public void run(Run run) throws Exception {
        client = Cf.connect(run);
        String root = Cf.root(run, client);
        String p = root + "/p";
        String x = root + "/x";
        run.step("all", () -> {
            List<CuratorTransactionResult> results = client.transaction().forOperations(create(p), create(p + "/c"), set(p + "/c", "1", 0), check(p + "/c", 1),
                    client.transactionOp().delete().withVersion(1).forPath(p + "/c"));
            equal("kinds", List.of(OperationType.CREATE, OperationType.CREATE, OperationType.SET_DATA, OperationType.CHECK, OperationType.DELETE),
                    results.stream().map(CuratorTransactionResult::getType).toList());
            equal("create P", p, results.get(0).getResultPath());
            equal("create P/c", p + "/c", results.get(1).getResultPath());
            equal("version set", 1, results.get(2).getResultStat().getVersion());
            equal("children", List.of("p"), Cf.children(client, root));
            equal("children of P", List.of(), Cf.children(client, p));
        });
        run.step("one-zxid", () -> {
            client.transaction().forOperations(create(root + "/one"), create(root + "/two"));
            equal("czxid", client.checkExists().forPath(root + "/one").getCzxid(), client.checkExists().forPath(root + "/two").getCzxid());
        });
        run.step("none", () -> {
            failure = refused("transaction", NodeExistsException.class, () -> client.transaction().forOperations(create(x), create(p), create(root + "/y")));
            equal("X is there", false, Cf.there(client, x));
        });
        run.step("which", () -> {
            // What comes before the failure has code 0 in the server's answer, what comes after it -2.
            List<Integer> codes = failure.getResults().stream().map(result -> ((OpResult.ErrorResult) result).getErr()).toList();
            equal("codes", List.of(KeeperException.Code.OK.intValue(), KeeperException.Code.NODEEXISTS.intValue(), KeeperException.Code.RUNTIMEINCONSISTENCY.intValue()), codes);
        });
        run.step("check-fails", () -> {
            refused("transaction", BadVersionException.class, () -> client.transaction().forOperations(check(p, 9), create(x)));
            equal("X is there", false, Cf.there(client, x));
        });
        run.step("order", () -> {
            String y = root + "/y";
            client.transaction().forOperations(create(y), set(y, "1", 0), set(y, "2", 1));
            equal("value", "2", Cf.get(client, y));
            equal("version", 2, client.checkExists().forPath(y).getVersion());
        });
        run.step("sequential", () -> {
            String queue = Cf.make(client, root + "/queue", "");
            CuratorOp next = client.transactionOp().create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(queue + "/n-", new byte[0]);
            List<String> paths = client.transaction().forOperations(next, next).stream().map(CuratorTransactionResult::getResultPath).toList();
            equal("paths", List.of(queue + "/n-0000000000", queue + "/n-0000000001"), paths);
            equal("children", List.of("n-0000000000", "n-0000000001"), Cf.children(client, queue));
        });
        run.step("silent", () -> {
            String home = Cf.make(client, root + "/home", "");
            Events watch = new Events();
            client.getChildren().usingWatcher(watch).forPath(home);
            refused("transaction", NodeExistsException.class, () -> client.transaction().forOperations(create(home + "/a"), create(p)));
            watch.silent(1000);
            client.transaction().forOperations(create(home + "/a"), create(home + "/b"));
            watch.once(EventType.NodeChildrenChanged, home);
        });
    }

    private CuratorOp create(String path) throws Exception {
        return client.transactionOp().create().forPath(path, new byte[0]);
    }

    private CuratorOp set(String path, String value, int version) throws Exception {
        return client.transactionOp().setData().withVersion(version).forPath(path, Cf.bytes(value));
    }

    private CuratorOp check(String path, int version) throws Exception {
        return client.transactionOp().check().withVersion(version).forPath(path);
    }
}
