package compat.curator;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.KeeperException.BadVersionException;
import org.apache.zookeeper.KeeperException.NoAuthException;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

public final class Acl implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        CuratorFramework a = Cf.start(run, Cf.builder(run.address(), Cf.SESSION_MILLIS).authorization("digest", Cf.bytes("user:secret")));
        CuratorFramework b = Cf.connect(run);
        String root = Cf.root(run, a);
        String open = root + "/open";
        String mine = root + "/mine";
        run.step("open", () -> {
            Cf.make(a, open, "");
            Stat stat = new Stat();
            equal("list", List.of(new ACL(Perms.ALL, new Id("world", "anyone"))), a.getACL().storingStatIn(stat).forPath(open));
            equal("aversion", 0, stat.getAversion());
        });
        run.step("digest", () -> a.create().withACL(Ids.CREATOR_ALL_ACL).forPath(mine, Cf.bytes("0")));
        run.step("shown", () -> {
            byte[] hash = MessageDigest.getInstance("SHA-1").digest(Cf.bytes("user:secret"));
            Id id = new Id("digest", "user:" + Base64.getEncoder().encodeToString(hash));
            equal("list", List.of(new ACL(Perms.ALL, id)), a.getACL().forPath(mine));
        });
        run.step("own", () -> {
            Cf.set(a, mine, "1");
            equal("value", "1", Cf.get(a, mine));
        });
        run.step("stranger", () -> {
            refused("get", NoAuthException.class, () -> b.getData().forPath(mine));
            refused("set", NoAuthException.class, () -> b.setData().forPath(mine, new byte[0]));
        });
        run.step("admitted", () -> {
            b.getZookeeperClient().getZooKeeper().addAuthInfo("digest", Cf.bytes("user:secret"));
            equal("value", "1", Cf.get(b, mine));
        });
        run.step("changed", () -> {
            equal("aversion", 1, a.setACL().withVersion(0).withACL(Ids.READ_ACL_UNSAFE).forPath(mine).getAversion());
            CuratorFramework c = Cf.connect(run);
            equal("value", "1", Cf.get(c, mine));
            refused("set", NoAuthException.class, () -> c.setData().forPath(mine, new byte[0]));
        });
        run.step("bad-version", () -> {
            refused("setACL", BadVersionException.class, () -> a.setACL().withVersion(7).withACL(Ids.OPEN_ACL_UNSAFE).forPath(open));
            equal("aversion", 0, a.checkExists().forPath(open).getAversion());
            // Who may administrate is asked before the version.
            refused("setACL of the other", NoAuthException.class, () -> a.setACL().withVersion(7).withACL(Ids.OPEN_ACL_UNSAFE).forPath(mine));
            equal("aversion of the other", 1, a.checkExists().forPath(mine).getAversion());
        });
    }
}
