package compat.curator;

import static compat.Run.eventually;
import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.x.discovery.ServiceCache;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.curator.x.discovery.ServiceProvider;
import org.apache.curator.x.discovery.strategies.RoundRobinStrategy;

public final class Discovery implements Scenario {
    private final Map<Integer, Registration> registrations = new HashMap<>();
    private String base;
    private String name;
    private ServiceDiscovery<String> reader;
    private ServiceCache<String> cache;
    private ServiceProvider<String> provider;

    @Override
    public void run(Run run) throws Exception {
        int slash = run.prefix().lastIndexOf('/');
        base = run.prefix().substring(0, slash);
        name = run.prefix().substring(slash + 1);
        run.step("empty", () -> {
            reader = discovery(run, Cf.connect(run));
            cache = run.own(reader.serviceCacheBuilder().name(name).build());
            cache.start();
            provider = run.own(reader.serviceProviderBuilder().serviceName(name).providerStrategy(new RoundRobinStrategy<>()).build());
            provider.start();
            lists(1000, List.of());
            equal("an instance by the provider", null, provider.getInstance());
        });
        run.step("registered", () -> {
            for (int port : List.of(7001, 7002, 7003)) {
                registrations.put(port, new Registration(run, port));
            }
            lists(3000, List.of("127.0.0.1:7001 a", "127.0.0.1:7002 a", "127.0.0.1:7003 a"));
            equal("the service is among the names", true, reader.queryForNames().contains(name));
            eventually("different ones among three", 3000, 3L, () -> Stream.generate(this::provided).limit(3).distinct().count());
        });
        run.step("updated", () -> {
            registrations.get(7002).update("b");
            lists(3000, List.of("127.0.0.1:7001 a", "127.0.0.1:7002 b", "127.0.0.1:7003 a"));
            eventually("asked by id", 3000, "127.0.0.1:7002 b", () -> text(reader.queryForInstance(name, "i-7002")));
        });
        run.step("left", () -> {
            registrations.get(7001).leave();
            lists(2000, List.of("127.0.0.1:7002 b", "127.0.0.1:7003 a"));
        });
        run.step("died", () -> {
            registrations.put(7004, new Registration(run, 7004));
            registrations.put(7005, new Registration(run, 7005));
            lists(3000, List.of("127.0.0.1:7002 b", "127.0.0.1:7003 a", "127.0.0.1:7004 a", "127.0.0.1:7005 a"));
            registrations.get(7004).client.close();
            lists(3000, List.of("127.0.0.1:7002 b", "127.0.0.1:7003 a", "127.0.0.1:7005 a"));
        });
        run.step("all-left", () -> {
            for (int port : List.of(7002, 7003, 7005)) {
                registrations.get(port).leave();
            }
            lists(3000, List.of());
        });
    }

    /**
     * What the caches follow and what a query reads. Each has its own time: in an ensemble the tracker may move a session to
     * another server, and Curator registers anew after that, by delete and create.
     */
    private void lists(long limitMillis, List<String> wanted) throws Exception {
        eventually("instances by the cache", limitMillis, wanted, () -> texts(cache.getInstances()));
        eventually("instances by the provider", limitMillis, wanted, () -> texts(provider.getAllInstances()));
        eventually("instances by a query", limitMillis, wanted, () -> texts(reader.queryForInstances(name)));
    }

    private String provided() {
        try {
            return text(provider.getInstance());
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private static List<String> texts(Collection<ServiceInstance<String>> instances) {
        return instances.stream().map(Discovery::text).sorted().toList();
    }

    private static String text(ServiceInstance<String> instance) {
        return instance == null ? "none" : instance.getAddress() + ":" + instance.getPort() + " " + instance.getPayload();
    }

    private ServiceDiscovery<String> discovery(Run run, CuratorFramework client) throws Exception {
        ServiceDiscovery<String> discovery = ServiceDiscoveryBuilder.builder(String.class).client(client).basePath(base).build();
        discovery.start();
        return run.own(discovery);
    }

    /** An instance with a session of its own. */
    private final class Registration {
        private final int port;
        private final CuratorFramework client;
        private final ServiceDiscovery<String> discovery;

        Registration(Run run, int port) throws Exception {
            this.port = port;
            this.client = Cf.connect(run);
            this.discovery = discovery(run, client);
            discovery.registerService(instance("a"));
        }

        void update(String payload) throws Exception {
            discovery.updateService(instance(payload));
        }

        void leave() throws Exception {
            discovery.unregisterService(instance("a"));
        }

        private ServiceInstance<String> instance(String payload) throws Exception {
            return ServiceInstance.<String>builder().name(name).id("i-" + port).address("127.0.0.1").port(port).payload(payload).build();
        }
    }
}
