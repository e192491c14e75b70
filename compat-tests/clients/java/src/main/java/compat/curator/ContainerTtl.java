package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.CreateMode;

public final class ContainerTtl implements Scenario {
    private CuratorFramework client;

    @Override
    public void run(Run run) throws Exception {
        client = Cf.connect(run);
        String root = Cf.root(run, client);
        String box = root + "/box";
        run.step("container", () -> {
            equal("path", box, client.create().withMode(CreateMode.CONTAINER).forPath(box, Cf.bytes("0")));
            equal("path of the child", box + "/child", Cf.make(client, box + "/child", ""));
            Cf.set(client, box, "1");
            equal("value", "1", Cf.get(client, box));
            equal("version", 1, client.checkExists().forPath(box).getVersion());
        });
        run.step("container-goes", () -> {
            client.delete().forPath(box + "/child");
            eventually("the container is there", 5000, false, () -> Cf.there(client, box));
            // Curator's own way to containers: parents made on the way.
            client.create().creatingParentContainersIfNeeded().forPath(root + "/p/q/r", new byte[0]);
            client.delete().forPath(root + "/p/q/r");
            eventually("the containers are there", 8000, false, () -> Cf.there(client, root + "/p"));
        });
        run.step("container-unused", () -> {
            client.create().withMode(CreateMode.CONTAINER).forPath(root + "/unused", new byte[0]);
            Run.pause(3000);
            equal("the container is there", true, Cf.there(client, root + "/unused"));
        });
        run.step("ttl", () -> {
            String brief = ttl(root + "/brief", CreateMode.PERSISTENT_WITH_TTL);
            equal("path", root + "/brief", brief);
            equal("the node is there", true, Cf.there(client, brief));
            eventually("the node is there", 6000, false, () -> Cf.there(client, brief));
        });
        run.step("ttl-set", () -> {
            String kept = ttl(root + "/kept", CreateMode.PERSISTENT_WITH_TTL);
            for (int i = 0; i < 6; i++) {
                Run.pause(500);
                Cf.set(client, kept, "" + i);
            }
            equal("the node is there", true, Cf.there(client, kept));
        });
        run.step("ttl-sequential", () -> {
            String home = Cf.make(client, root + "/home", "");
            equal("path", home + "/n-0000000000", ttl(home + "/n-", CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL));
            equal("path of the next", home + "/n-0000000001", ttl(home + "/n-", CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL));
            eventually("children", 6000, 0, () -> Cf.children(client, home).size());
        });
    }

    private String ttl(String path, CreateMode mode) throws Exception {
        return client.create().withTtl(1500).withMode(mode).forPath(path, new byte[0]);
    }
}
