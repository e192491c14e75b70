package compat.curator;

import compat.Run;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.KeeperException;

/** The few calls that every scenario makes. */
final class Cf {
    static final int SESSION_MILLIS = 10_000;

    private Cf() {}

    static CuratorFramework connect(Run run) throws Exception {
        return connect(run, run.address(), SESSION_MILLIS);
    }

    static CuratorFramework connect(Run run, String address, int sessionMillis) throws Exception {
        return start(run, builder(address, sessionMillis));
    }

    /** Curator as it comes, the ensemble tracker on; only the waiting is bounded. */
    static CuratorFrameworkFactory.Builder builder(String address, int sessionMillis) {
        return CuratorFrameworkFactory.builder().connectString(address).sessionTimeoutMs(sessionMillis).connectionTimeoutMs(3000)
                .retryPolicy(new RetryNTimes(5, 300)).waitForShutdownTimeoutMs(500);
    }

    static CuratorFramework start(Run run, CuratorFrameworkFactory.Builder builder) throws Exception {
        CuratorFramework client = run.own(builder.build());
        client.start();
        Run.equal("connected within 10 s", true, client.blockUntilConnected(10, TimeUnit.SECONDS));
        return client;
    }

    /** The prefix of the run, made with its parents. */
    static String root(Run run, CuratorFramework client) throws Exception {
        return client.create().creatingParentsIfNeeded().forPath(run.prefix(), new byte[0]);
    }

    static String make(CuratorFramework client, String path, String value) throws Exception {
        return client.create().forPath(path, bytes(value));
    }

    static void set(CuratorFramework client, String path, String value) throws Exception {
        client.setData().forPath(path, bytes(value));
    }

    static String get(CuratorFramework client, String path) throws Exception {
        return new String(client.getData().forPath(path), StandardCharsets.UTF_8);
    }

    static boolean there(CuratorFramework client, String path) throws Exception {
        return client.checkExists().forPath(path) != null;
    }

    static List<String> children(CuratorFramework client, String path) throws Exception {
        List<String> names = new ArrayList<>(client.getChildren().forPath(path));
        Collections.sort(names);
        return names;
    }

    /** Names below a path that may be gone: the paths of recipes are containers. */
    static List<String> childrenIfThere(CuratorFramework client, String path) throws Exception {
        try {
            return children(client, path);
        } catch (KeeperException.NoNodeException e) {
            return List.of();
        }
    }

    /** In an ensemble a server may not have heard of another client's writes yet: from here on this client sees them. */
    static void sync(CuratorFramework client, String path) throws Exception {
        client.sync().forPath(path);
    }

    static long session(CuratorFramework client) throws Exception {
        return client.getZookeeperClient().getZooKeeper().getSessionId();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
