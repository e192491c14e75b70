package compat.zookeeper;

import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;

/** Ephemeral children with Curator's values, and a reader that lists anew after each event. */
public final class Discovery implements Scenario {
    private static final Pattern VALUE = Pattern.compile("\"address\":\"([^\"]+)\",\"port\":(\\d+).*\"payload\":\"([^\"]*)\"");

    private final Map<Integer, ZooKeeper> sessions = new HashMap<>();
    private String service;

    @Override
    public void run(Run run) throws Exception {
        ZooKeeper client = Zk.connect(run);
        service = Zk.root(run, client);
        Reader reader = new Reader(client);
        run.step("empty", () -> {
            reader.list();
            eventually("list", 1000, List.of(), reader::seen);
        });
        run.step("registered", () -> {
            for (int port : List.of(7001, 7002, 7003)) {
                register(run, port);
            }
            eventually("list", 3000, List.of("127.0.0.1:7001 a", "127.0.0.1:7002 a", "127.0.0.1:7003 a"), reader::seen);
        });
        run.step("updated", () -> {
            Zk.set(sessions.get(7002), service + "/i-7002", value(7002, "b"));
            eventually("list", 3000, List.of("127.0.0.1:7001 a", "127.0.0.1:7002 b", "127.0.0.1:7003 a"), reader::seen);
        });
        run.step("left", () -> {
            sessions.get(7001).delete(service + "/i-7001", -1);
            eventually("list", 2000, List.of("127.0.0.1:7002 b", "127.0.0.1:7003 a"), reader::seen);
        });
        run.step("died", () -> {
            register(run, 7004);
            register(run, 7005);
            eventually("list", 3000, List.of("127.0.0.1:7002 b", "127.0.0.1:7003 a", "127.0.0.1:7004 a", "127.0.0.1:7005 a"), reader::seen);
            sessions.get(7004).close();
            eventually("list", 3000, List.of("127.0.0.1:7002 b", "127.0.0.1:7003 a", "127.0.0.1:7005 a"), reader::seen);
        });
        run.step("all-left", () -> {
            for (int port : List.of(7002, 7003, 7005)) {
                sessions.get(port).delete(service + "/i-" + port, -1);
            }
            eventually("list", 3000, List.of(), reader::seen);
        });
    }

    private void register(Run run, int port) throws Exception {
        ZooKeeper session = Zk.connect(run);
        sessions.put(port, session);
        Zk.make(session, service + "/i-" + port, value(port, "a"), CreateMode.EPHEMERAL);
    }

    private String value(int port, String payload) {
        String name = service.substring(service.lastIndexOf('/') + 1);
        return "{\"name\":\"" + name + "\",\"id\":\"i-" + port + "\",\"address\":\"127.0.0.1\",\"port\":" + port
                + ",\"sslPort\":null,\"payload\":\"" + payload + "\",\"registrationTimeUTC\":1700000000000,\"serviceType\":\"DYNAMIC\",\"uriSpec\":null}";
    }

    /** Keeps a children watch on the service and a data watch on each instance. */
    private final class Reader implements Watcher {
        private final ZooKeeper client;
        private volatile List<String> seen = List.of("not listed yet");

        Reader(ZooKeeper client) {
            this.client = client;
        }

        List<String> seen() {
            return seen;
        }

        @Override
        public void process(WatchedEvent event) {
            if (event.getType() != Event.EventType.None) {
                Run.daemon("reader", this::list);
            }
        }

        synchronized void list() throws Exception {
            TreeSet<String> found = new TreeSet<>();
            for (String name : client.getChildren(service, this)) {
                try {
                    Matcher value = VALUE.matcher(new String(client.getData(service + "/" + name, this, null)));
                    found.add(value.find() ? value.group(1) + ":" + value.group(2) + " " + value.group(3) : "unreadable " + name);
                } catch (KeeperException.NoNodeException e) {
                    // It left between the list and the read; the children watch tells.
                }
            }
            seen = new ArrayList<>(found);
        }
    }
}
