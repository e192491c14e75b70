package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooKeeper;

public final class Restart implements Scenario {
    private final Events watch = new Events();
    private ZooKeeper a;
    private ZooKeeper b;
    private String root;
    private String mine;
    private String watched;
    private long czxid;
    private long newest;
    private long sessionA;
    private long sessionB;

    @Override
    public int limitSeconds() {
        return 115;
    }

    @Override
    public void run(Run run) throws Exception {
        run.step("before", () -> {
            a = Zk.connect(run, run.address(), 20_000, new Events());
            b = Zk.connect(run, run.address(), 20_000, new Events());
            sessionA = a.getSessionId();
            sessionB = b.getSessionId();
            root = Zk.root(run, b);
            watched = Zk.make(b, root + "/watched", "before");
            mine = Zk.make(a, root + "/mine", "mine", CreateMode.EPHEMERAL);
            equal("sequential", root + "/n-0000000002", Zk.make(a, root + "/n-", "n", CreateMode.PERSISTENT_SEQUENTIAL));
            czxid = a.exists(mine, false).getCzxid();
            newest = a.exists(root + "/n-0000000002", false).getCzxid();
            equal("value", "before", new String(a.getData(watched, watch, null)));
        });
        run.step("down", () -> {
            run.fault("restart");
            eventually("A is answered", 15_000, true, () -> answered(a));
            eventually("B is answered", 15_000, true, () -> answered(b));
            equal("session id of A", sessionA, a.getSessionId());
            equal("session id of B", sessionB, b.getSessionId());
        });
        run.step("stays", () -> {
            equal("czxid", czxid, b.exists(mine, false).getCzxid());
            equal("owner", sessionA, b.exists(mine, false).getEphemeralOwner());
            equal("value of the ephemeral node", "mine", Zk.get(b, mine));
            equal("value of the watched node", "before", Zk.get(b, watched));
            equal("value of the sequential node", "n", Zk.get(b, root + "/n-0000000002"));
        });
        run.step("watch", () -> {
            watch.silent(200);
            Zk.set(b, watched, "after");
            watch.once(EventType.NodeDataChanged, watched);
        });
        run.step("numbers", () -> {
            equal("sequential", root + "/n-0000000003", Zk.make(a, root + "/n-", "n", CreateMode.PERSISTENT_SEQUENTIAL));
            long next = a.exists(root + "/n-0000000003", false).getCzxid();
            holds("czxid greater than " + newest, next > newest, next);
        });
        run.step("ends", () -> {
            a.close();
            eventually("the node is there", 2000, false, () -> Zk.there(b, mine));
        });
    }

    private boolean answered(ZooKeeper client) throws Exception {
        try {
            return Zk.there(client, root);
        } catch (KeeperException.ConnectionLossException e) {
            return false;
        }
    }
}
