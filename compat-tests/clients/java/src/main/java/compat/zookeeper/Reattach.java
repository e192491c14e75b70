package compat.zookeeper;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

public final class Reattach implements Scenario {
    private final Events told = new Events();
    private final Events data = new Events();
    private final Events child = new Events();
    private ZooKeeper a;
    private ZooKeeper b;
    private String mine;
    private String w;
    private String p;
    private long session;
    private long czxid;

    @Override
    public void run(Run run) throws Exception {
        run.step("created", () -> {
            a = Zk.connect(run, run.link(), 10_000, told);
            b = Zk.connect(run);
            String root = Zk.root(run, b);
            w = Zk.make(b, root + "/w", "before");
            p = Zk.make(b, root + "/p", "");
            mine = Zk.make(a, root + "/mine", "", CreateMode.EPHEMERAL);
            session = a.getSessionId();
            czxid = a.exists(mine, false).getCzxid();
            a.getData(w, data, null);
            a.getChildren(p, child);
        });
        run.step("away", () -> {
            told.forgetStates();
            run.fault("cut");
            Zk.set(b, w, "after");
            Zk.make(b, p + "/c", "");
            Run.pause(2000);
            run.fault("mend");
        });
        run.step("same", () -> {
            told.state(KeeperState.SyncConnected, 10_000);
            equal("session id", session, a.getSessionId());
        });
        run.step("stays", () -> {
            equal("owner", session, b.exists(mine, false).getEphemeralOwner());
            equal("czxid", czxid, a.exists(mine, false).getCzxid());
        });
        run.step("data-watch", () -> data.once(EventType.NodeDataChanged, w));
        run.step("child-watch", () -> child.once(EventType.NodeChildrenChanged, p));
        run.step("works", () -> {
            Zk.set(a, w, "again");
            equal("value read by A", "again", Zk.get(a, w));
            equal("value read by B", "again", Zk.get(b, w));
        });
    }
}
