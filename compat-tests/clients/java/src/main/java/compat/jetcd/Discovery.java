package compat.jetcd;

import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import io.etcd.jetcd.watch.WatchEvent;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The endpoints of clientv3's naming, written and followed by hand: a list of the prefix, then a watch from there on. */
public final class Discovery implements Scenario {
    private final Map<Integer, Instance> instances = new HashMap<>();
    private final Map<String, String> seen = new TreeMap<>();

    @Override
    public void run(Run run) throws Exception {
        Client client = Etcd.connect(run);
        String prefix = run.prefix() + "/";
        run.step("empty", () -> {
            follow(run, client, prefix);
            eventually("list", 1000, List.of(), this::list);
        });
        run.step("registered", () -> {
            for (int port : List.of(7001, 7002, 7003)) {
                instances.put(port, new Instance(run, port, 30));
            }
            eventually("list", 3000, List.of(value(7001, null), value(7002, null), value(7003, null)), this::list);
        });
        run.lacks("called", "no resolver over etcd's naming");
        run.step("left", () -> {
            instances.get(7001).leave();
            eventually("list", 2000, List.of(value(7002, null), value(7003, null)), this::list);
        });
        run.step("updated", () -> {
            instances.get(7002).put("blue");
            eventually("list", 3000, List.of(value(7002, "blue"), value(7003, null)), this::list);
        });
        run.step("died", () -> {
            instances.put(7004, new Instance(run, 7004, 3));
            instances.put(7005, new Instance(run, 7005, 3));
            eventually("list", 3000, List.of(value(7002, "blue"), value(7003, null), value(7004, null), value(7005, null)), this::list);
            instances.get(7004).renewal.close();
            eventually("list", 8000, List.of(value(7002, "blue"), value(7003, null), value(7005, null)), this::list);
        });
        run.step("all-left", () -> {
            for (int port : List.of(7002, 7003, 7005)) {
                instances.get(port).leave();
            }
            eventually("list", 3000, List.of(), this::list);
        });
    }

    private void follow(Run run, Client client, String prefix) throws Exception {
        GetResponse listed = Etcd.get(client.getKVClient().get(Etcd.bytes(prefix), GetOption.builder().isPrefix(true).build()));
        synchronized (seen) {
            for (KeyValue pair : listed.getKvs()) {
                seen.put(Etcd.text(pair.getKey()), Etcd.text(pair.getValue()));
            }
        }
        WatchOption onwards = WatchOption.builder().isPrefix(true).withRevision(listed.getHeader().getRevision() + 1).build();
        run.own(client.getWatchClient().watch(Etcd.bytes(prefix), onwards, response -> {
            synchronized (seen) {
                for (WatchEvent event : response.getEvents()) {
                    String key = Etcd.text(event.getKeyValue().getKey());
                    if (event.getEventType() == WatchEvent.EventType.DELETE) {
                        seen.remove(key);
                    } else {
                        seen.put(key, Etcd.text(event.getKeyValue().getValue()));
                    }
                }
            }
        }));
    }

    private List<String> list() {
        synchronized (seen) {
            return List.copyOf(seen.values());
        }
    }

    private static String value(int port, String metadata) {
        return "{\"Op\":0,\"Addr\":\"127.0.0.1:" + port + "\",\"Metadata\":" + (metadata == null ? null : "\"" + metadata + "\"") + "}";
    }

    /** A client of its own with a lease that it renews. */
    private static final class Instance {
        private final int port;
        private final String key;
        private final Client client;
        private final long lease;
        private final CloseableClient renewal;

        Instance(Run run, int port, long ttl) throws Exception {
            this.port = port;
            this.key = run.prefix() + "/127.0.0.1:" + port;
            client = Etcd.connect(run);
            lease = Etcd.get(client.getLeaseClient().grant(ttl)).getID();
            renewal = client.getLeaseClient().keepAlive(lease, Observers.<LeaseKeepAliveResponse>observer(response -> {}));
            put(null);
        }

        void put(String metadata) throws Exception {
            Etcd.put(client, key, value(port, metadata), lease);
        }

        void leave() throws Exception {
            renewal.close();
            Etcd.get(client.getLeaseClient().revoke(lease));
        }
    }
}
