package compat.curator;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class SessionExpiry implements Scenario {
    private final Events watch = new Events();
    private CuratorFramework a;
    private CuratorFramework b;
    private States states;
    private String mine;
    private long session;
    private long cut;

    @Override
    public void run(Run run) throws Exception {
        run.step("created", () -> {
            a = Cf.connect(run, run.link(), 4000);
            b = Cf.connect(run);
            session = Cf.session(a);
            mine = Cf.root(run, b) + "/mine";
            a.create().withMode(CreateMode.EPHEMERAL).forPath(mine, new byte[0]);
            equal("owner", session, b.checkExists().usingWatcher(watch).forPath(mine).getEphemeralOwner());
        });
        run.step("kept", () -> {
            states = States.of(a);
            run.fault("cut");
            cut = System.nanoTime();
            Run.pause(1500);
            equal("the node is there", true, Cf.there(b, mine));
        });
        run.step("gone", () -> {
            watch.next(EventType.NodeDeleted, mine, 9000 - sinceCut());
            holds("milliseconds from the cut to the event, 2000 at least", sinceCut() >= 2000, sinceCut());
            equal("the node is there", false, Cf.there(b, mine));
        });
        run.step("told", () -> {
            run.fault("mend");
            states.next(ConnectionState.SUSPENDED, 10_000);
            states.next(ConnectionState.LOST, 10_000);
        });
        run.step("again", () -> {
            states.next(ConnectionState.RECONNECTED, 15_000);
            holds("a new session id", Cf.session(a) != session, Cf.session(a));
            a.create().withMode(CreateMode.EPHEMERAL).forPath(mine, new byte[0]);
            equal("owner", Cf.session(a), b.checkExists().forPath(mine).getEphemeralOwner());
        });
    }

    private long sinceCut() {
        return (System.nanoTime() - cut) / 1_000_000;
    }
}
