package compat.zookeeper;

import compat.Run;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** The few calls that every scenario makes. */
final class Zk {
    static final int SESSION_MILLIS = 10_000;

    private Zk() {}

    static ZooKeeper connect(Run run) throws Exception {
        return connect(run, run.address(), SESSION_MILLIS, new Events());
    }

    static ZooKeeper connect(Run run, String address, int sessionMillis, Events events) throws Exception {
        ZooKeeper client = run.own(new Closing(new ZooKeeper(address, sessionMillis, events))).client();
        events.state(KeeperState.SyncConnected, 10_000);
        return client;
    }

    /** The prefix of the run, made with its parents. */
    static String root(Run run, ZooKeeper client) throws Exception {
        String path = run.prefix();
        for (int slash = path.indexOf('/', 1); slash > 0; slash = path.indexOf('/', slash + 1)) {
            try {
                make(client, path.substring(0, slash), "");
            } catch (KeeperException.NodeExistsException e) {
                // Another run was here first.
            }
        }
        return make(client, path, "");
    }

    static String make(ZooKeeper client, String path, String value) throws Exception {
        return make(client, path, value, CreateMode.PERSISTENT);
    }

    static String make(ZooKeeper client, String path, String value, CreateMode mode) throws Exception {
        return client.create(path, bytes(value), Ids.OPEN_ACL_UNSAFE, mode);
    }

    static void set(ZooKeeper client, String path, String value) throws Exception {
        client.setData(path, bytes(value), -1);
    }

    static String get(ZooKeeper client, String path) throws Exception {
        return new String(client.getData(path, false, null), StandardCharsets.UTF_8);
    }

    static boolean there(ZooKeeper client, String path) throws Exception {
        return client.exists(path, false) != null;
    }

    static List<String> children(ZooKeeper client, String path) throws Exception {
        List<String> names = new ArrayList<>(client.getChildren(path, false));
        Collections.sort(names);
        return names;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Closes a client without waiting long for a server that may be away. */
    private record Closing(ZooKeeper client) implements AutoCloseable {
        @Override
        public void close() throws InterruptedException {
            client.close(500);
        }
    }
}
