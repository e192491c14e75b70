package compat.zookeeper;

import static compat.Run.equal;
import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

public final class ContainerTtl implements Scenario {
    private ZooKeeper client;

    @Override
    public void run(Run run) throws Exception {
        client = Zk.connect(run);
        String root = Zk.root(run, client);
        String box = root + "/box";
        run.step("container", () -> {
            equal("path", box, Zk.make(client, box, "0", CreateMode.CONTAINER));
            equal("path of the child", box + "/child", Zk.make(client, box + "/child", ""));
            Zk.set(client, box, "1");
            equal("value", "1", Zk.get(client, box));
            equal("version", 1, client.exists(box, false).getVersion());
        });
        run.step("container-goes", () -> {
            client.delete(box + "/child", -1);
            eventually("the container is there", 5000, false, () -> Zk.there(client, box));
        });
        run.step("container-unused", () -> {
            Zk.make(client, root + "/unused", "", CreateMode.CONTAINER);
            Run.pause(3000);
            equal("the container is there", true, Zk.there(client, root + "/unused"));
        });
        run.step("ttl", () -> {
            String brief = ttl(root + "/brief", CreateMode.PERSISTENT_WITH_TTL);
            equal("path", root + "/brief", brief);
            equal("the node is there", true, Zk.there(client, brief));
            eventually("the node is there", 6000, false, () -> Zk.there(client, brief));
        });
        run.step("ttl-set", () -> {
            String kept = ttl(root + "/kept", CreateMode.PERSISTENT_WITH_TTL);
            for (int i = 0; i < 6; i++) {
                Run.pause(500);
                Zk.set(client, kept, "" + i);
            }
            equal("the node is there", true, Zk.there(client, kept));
        });
        run.step("ttl-sequential", () -> {
            String home = Zk.make(client, root + "/home", "");
            String first = ttl(home + "/n-", CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL);
            equal("path", home + "/n-0000000000", first);
            equal("path of the next", home + "/n-0000000001", ttl(home + "/n-", CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL));
            eventually("children", 6000, 0, () -> client.getChildren(home, false).size());
        });
    }

    private String ttl(String path, CreateMode mode) throws Exception {
        return client.create(path, new byte[0], Ids.OPEN_ACL_UNSAFE, mode, new Stat(), 1500);
    }
}
