package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooKeeper;

public final class Connect implements Scenario {
    private ZooKeeper client;
    private ZooKeeper brief;

    @Override
    public void run(Run run) throws Exception {
        run.step("session", () -> {
            client = Zk.connect(run);
            holds("session id", client.getSessionId() != 0, client.getSessionId());
            equal("length of the password", 16, client.getSessionPasswd().length);
            equal("negotiated timeout", Zk.SESSION_MILLIS, client.getSessionTimeout());
        });
        run.step("timeout-low", () -> {
            brief = Zk.connect(run, run.address(), 100, new Events());
            equal("negotiated timeout", 4000, brief.getSessionTimeout());
        });
        run.step("timeout-high", () -> equal("negotiated timeout", 40_000, Zk.connect(run, run.address(), 100_000, new Events()).getSessionTimeout()));
        String mine = Zk.root(run, client) + "/mine";
        run.step("idle", () -> {
            Zk.make(brief, mine, "", CreateMode.EPHEMERAL);
            long session = brief.getSessionId();
            Run.pause(10_000);
            equal("state", ZooKeeper.States.CONNECTED, brief.getState());
            equal("session id", session, brief.getSessionId());
            equal("owner", session, client.exists(mine, false).getEphemeralOwner());
        });
        run.step("close", () -> {
            brief.close();
            eventually("the node is there", 1000, false, () -> Zk.there(client, mine));
        });
    }
}
