package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class Restart implements Scenario {
    private final Events watch = new Events();
    private CuratorFramework a;
    private CuratorFramework b;
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
            a = Cf.connect(run, run.address(), 20_000);
            b = Cf.connect(run, run.address(), 20_000);
            sessionA = Cf.session(a);
            sessionB = Cf.session(b);
            root = Cf.root(run, b);
            watched = Cf.make(b, root + "/watched", "before");
            mine = a.create().withMode(CreateMode.EPHEMERAL).forPath(root + "/mine", Cf.bytes("mine"));
            equal("sequential", root + "/n-0000000002", next());
            czxid = a.checkExists().forPath(mine).getCzxid();
            newest = a.checkExists().forPath(root + "/n-0000000002").getCzxid();
            a.getData().usingWatcher(watch).forPath(watched);
        });
        run.step("down", () -> {
            States statesA = States.of(a);
            States statesB = States.of(b);
            run.fault("restart");
            for (States states : List.of(statesA, statesB)) {
                states.next(ConnectionState.SUSPENDED, 15_000);
                states.next(ConnectionState.RECONNECTED, 15_000);
            }
            equal("session id of A", sessionA, Cf.session(a));
            equal("session id of B", sessionB, Cf.session(b));
        });
        run.step("stays", () -> {
            equal("czxid", czxid, b.checkExists().forPath(mine).getCzxid());
            equal("owner", sessionA, b.checkExists().forPath(mine).getEphemeralOwner());
            equal("value of the ephemeral node", "mine", Cf.get(b, mine));
            equal("value of the watched node", "before", Cf.get(b, watched));
            equal("value of the sequential node", "n", Cf.get(b, root + "/n-0000000002"));
        });
        run.step("watch", () -> {
            watch.silent(200);
            Cf.set(b, watched, "after");
            watch.once(EventType.NodeDataChanged, watched);
        });
        run.step("numbers", () -> {
            equal("sequential", root + "/n-0000000003", next());
            long czxid = a.checkExists().forPath(root + "/n-0000000003").getCzxid();
            holds("czxid greater than " + newest, czxid > newest, czxid);
        });
        run.step("ends", () -> {
            a.close();
            eventually("the node is there", 2000, false, () -> Cf.there(b, mine));
        });
    }

    private String next() throws Exception {
        return a.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(root + "/n-", Cf.bytes("n"));
    }
}
