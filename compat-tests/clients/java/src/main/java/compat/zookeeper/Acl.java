package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.BadVersionException;
import org.apache.zookeeper.KeeperException.NoAuthException;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

public final class Acl implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        ZooKeeper a = Zk.connect(run);
        ZooKeeper b = Zk.connect(run);
        String root = Zk.root(run, a);
        String open = root + "/open";
        String mine = root + "/mine";
        run.step("open", () -> {
            Zk.make(a, open, "");
            Stat stat = new Stat();
            equal("list", List.of(new ACL(Perms.ALL, new Id("world", "anyone"))), a.getACL(open, stat));
            equal("aversion", 0, stat.getAversion());
        });
        run.step("digest", () -> {
            a.addAuthInfo("digest", Zk.bytes("user:secret"));
            a.create(mine, Zk.bytes("0"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        });
        run.step("shown", () -> {
            byte[] hash = MessageDigest.getInstance("SHA-1").digest(Zk.bytes("user:secret"));
            Id id = new Id("digest", "user:" + Base64.getEncoder().encodeToString(hash));
            equal("list", List.of(new ACL(Perms.ALL, id)), a.getACL(mine, null));
        });
        run.step("own", () -> {
            Zk.set(a, mine, "1");
            equal("value", "1", Zk.get(a, mine));
        });
        run.step("stranger", () -> {
            refused("get", NoAuthException.class, () -> b.getData(mine, false, null));
            refused("set", NoAuthException.class, () -> b.setData(mine, new byte[0], -1));
        });
        run.step("admitted", () -> {
            b.addAuthInfo("digest", Zk.bytes("user:secret"));
            equal("value", "1", Zk.get(b, mine));
        });
        run.step("changed", () -> {
            equal("aversion", 1, a.setACL(mine, Ids.READ_ACL_UNSAFE, 0).getAversion());
            ZooKeeper c = Zk.connect(run);
            equal("value", "1", Zk.get(c, mine));
            refused("set", NoAuthException.class, () -> c.setData(mine, new byte[0], -1));
        });
        run.step("bad-version", () -> {
            refused("setACL", BadVersionException.class, () -> a.setACL(open, Ids.OPEN_ACL_UNSAFE, 7));
            equal("aversion", 0, a.exists(open, false).getAversion());
            // Who may administrate is asked before the version.
            refused("setACL of the other", NoAuthException.class, () -> a.setACL(mine, Ids.OPEN_ACL_UNSAFE, 7));
            equal("aversion of the other", 1, a.exists(mine, false).getAversion());
        });
    }
}
