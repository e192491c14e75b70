package compat.curator;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import compat.zookeeper.Events;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher.Event.EventType;

public final class Reattach implements Scenario {
    private final Events data = new Events();
    private final Events child = new Events();
    private CuratorFramework a;
    private CuratorFramework b;
    private States states;
    private String mine;
    private String w;
    private String p;
    private long session;
    private long czxid;

    @Override
    public void run(Run run) throws Exception {
        run.step("created", () -> {
            a = Cf.connect(run, run.link(), 10_000);
            b = Cf.connect(run);
            String root = Cf.root(run, b);
            w = Cf.make(b, root + "/w", "before");
            p = Cf.make(b, root + "/p", "");
            mine = a.create().withMode(CreateMode.EPHEMERAL).forPath(root + "/mine", new byte[0]);
            session = Cf.session(a);
            czxid = a.checkExists().forPath(mine).getCzxid();
            a.getData().usingWatcher(data).forPath(w);
            a.getChildren().usingWatcher(child).forPath(p);
        });
        run.step("away", () -> {
            states = States.of(a);
            run.fault("cut");
            Cf.set(b, w, "after");
            Cf.make(b, p + "/c", "");
            Run.pause(2000);
            run.fault("mend");
        });
        run.step("same", () -> {
            states.next(ConnectionState.SUSPENDED, 10_000);
            states.next(ConnectionState.RECONNECTED, 10_000);
            equal("session id", session, Cf.session(a));
        });
        run.step("stays", () -> {
            equal("owner", session, b.checkExists().forPath(mine).getEphemeralOwner());
            equal("czxid", czxid, a.checkExists().forPath(mine).getCzxid());
        });
        run.step("data-watch", () -> data.once(EventType.NodeDataChanged, w));
        run.step("child-watch", () -> child.once(EventType.NodeChildrenChanged, p));
        run.step("works", () -> {
            Cf.set(a, w, "again");
            equal("value read by A", "again", Cf.get(a, w));
            equal("value read by B", "again", Cf.get(b, w));
        });
    }
}
