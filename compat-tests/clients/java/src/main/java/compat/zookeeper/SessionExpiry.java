package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

public final class SessionExpiry implements Scenario {
    private final Events told = new Events();
    private final Events watch = new Events();
    private ZooKeeper a;
    private ZooKeeper b;
    private String mine;
    private long cut;

    @Override
    public void run(Run run) throws Exception {
        run.step("created", () -> {
            a = Zk.connect(run, run.link(), 4000, told);
            b = Zk.connect(run);
            mine = Zk.root(run, b) + "/mine";
            Zk.make(a, mine, "", CreateMode.EPHEMERAL);
            equal("owner", a.getSessionId(), b.exists(mine, watch).getEphemeralOwner());
        });
        run.step("kept", () -> {
            run.fault("cut");
            cut = System.nanoTime();
            Run.pause(1500);
            equal("the node is there", true, Zk.there(b, mine));
        });
        run.step("gone", () -> {
            watch.next(EventType.NodeDeleted, mine, 9000 - sinceCut());
            holds("milliseconds from the cut to the event, 2000 at least", sinceCut() >= 2000, sinceCut());
            equal("the node is there", false, Zk.there(b, mine));
        });
        run.step("told", () -> {
            run.fault("mend");
            told.state(KeeperState.Expired, 10_000);
            refused("a call on the ended session", KeeperException.SessionExpiredException.class, () -> a.exists(mine, false));
        });
        run.step("again", () -> {
            ZooKeeper next = Zk.connect(run, run.link(), 4000, new Events());
            holds("a new session id", next.getSessionId() != a.getSessionId(), next.getSessionId());
            Zk.make(next, mine, "", CreateMode.EPHEMERAL);
            equal("owner", next.getSessionId(), b.exists(mine, false).getEphemeralOwner());
        });
    }

    private long sinceCut() {
        return (System.nanoTime() - cut) / 1_000_000;
    }
}
