package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.CreateMode;

public final class Connect implements Scenario {
    private CuratorFramework client;
    private CuratorFramework brief;

    @Override
    public void run(Run run) throws Exception {
        run.step("session", () -> {
            client = Cf.connect(run);
            holds("session id", Cf.session(client) != 0, Cf.session(client));
            equal("length of the password", 16, client.getZookeeperClient().getZooKeeper().getSessionPasswd().length);
            equal("negotiated timeout", Cf.SESSION_MILLIS, negotiated(client));
        });
        run.step("timeout-low", () -> {
            brief = Cf.connect(run, run.address(), 100);
            equal("negotiated timeout", 4000, negotiated(brief));
            equal("negotiated timeout as Curator sees it", 4000, brief.getZookeeperClient().getLastNegotiatedSessionTimeoutMs());
        });
        run.step("timeout-high", () -> equal("negotiated timeout", 40_000, negotiated(Cf.connect(run, run.address(), 100_000))));
        String mine = Cf.root(run, client) + "/mine";
        run.step("idle", () -> {
            brief.create().withMode(CreateMode.EPHEMERAL).forPath(mine, new byte[0]);
            States states = States.of(brief);
            long session = Cf.session(brief);
            states.next(null, 10_000);
            equal("session id", session, Cf.session(brief));
            equal("owner", session, client.checkExists().forPath(mine).getEphemeralOwner());
        });
        run.step("close", () -> {
            brief.close();
            eventually("the node is there", 1000, false, () -> Cf.there(client, mine));
        });
    }

    private static int negotiated(CuratorFramework client) throws Exception {
        return client.getZookeeperClient().getZooKeeper().getSessionTimeout();
    }
}
