package dubbo;

import java.util.Map;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.ReferenceConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;

/**
 * {@code provider NAME ADDRESS PORT SESSION_MS} or {@code consumer NAME ADDRESS PORT SESSION_MS}; the consumer needs no port. Everything that
 * the arguments do not say is as Dubbo has it by default: providers register their interface and their application, and the same
 * registry keeps configuration, mapping and metadata.
 */
public final class Main {
    public static void main(String[] args) throws Exception {
        String name = args[1];
        // Dubbo names further servers in a parameter.
        RegistryConfig registry = new RegistryConfig("zookeeper://" + args[2].replaceFirst(",", "?backup="));
        // A parameter and not the setting: the first who asks for this address makes the connection for all, and that is the
        // configuration center, which takes over no more than address and parameters.
        registry.setParameters(Map.of("session", args[4]));
        switch (args[0]) {
            case "provider" -> provide(name, registry, Integer.parseInt(args[3]));
            case "consumer" -> consume(registry);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static ApplicationConfig application(String name) {
        ApplicationConfig application = new ApplicationConfig(name);
        // An operator's shell on a fixed port.
        application.setQosEnable(false);
        return application;
    }

    private static void provide(String name, RegistryConfig registry, int port) {
        ProtocolConfig protocol = new ProtocolConfig("dubbo", port);
        protocol.setHost("127.0.0.1");
        ServiceConfig<Greeter> service = new ServiceConfig<>();
        service.setInterface(Greeter.class);
        service.setRef(() -> name);
        // Its full share of the calls from the start, instead of after ten minutes.
        service.setWarmup(1);
        DubboBootstrap bootstrap = DubboBootstrap.getInstance()
                .application(application("dubbo-greeter"))
                .registry(registry)
                .protocol(protocol)
                .service(service)
                .start();
        say("ready");
        bootstrap.await();
    }

    private static void consume(RegistryConfig registry) throws InterruptedException {
        // Dubbo's own hook would take away what the loop below still calls through.
        System.setProperty("dubbo.shutdownHook.listenIgnore", "true");
        ReferenceConfig<Greeter> preferred = reference("application", "APPLICATION_FIRST");
        ReferenceConfig<Greeter> former = reference("interface", "FORCE_INTERFACE");
        DubboBootstrap.getInstance()
                .application(application("dubbo-asker"))
                .registry(registry)
                .reference(preferred)
                .reference(former)
                .start();
        Greeter byApplication = preferred.get();
        Greeter byInterface = former.get();
        Thread caller = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                caller.join(2000);
            } catch (InterruptedException goesOn) {
                Thread.currentThread().interrupt();
            }
            DubboBootstrap.getInstance().stop();
        }));
        say("ready");
        while (!stopping) {
            call("application", byApplication);
            call("interface", byInterface);
            Thread.sleep(100);
        }
    }

    private static volatile boolean stopping;

    private static ReferenceConfig<Greeter> reference(String id, String migration) {
        ReferenceConfig<Greeter> reference = new ReferenceConfig<>();
        reference.setId(id);
        reference.setInterface(Greeter.class);
        // On a machine that does much else; 1 s by default.
        reference.setTimeout(5000);
        reference.setParameters(Map.of("migration.step", migration));
        return reference;
    }

    private static void call(String how, Greeter greeter) {
        try {
            say("call " + how + " " + greeter.name());
        } catch (RuntimeException error) {
            say("failed " + how + " " + String.valueOf(error.getMessage()).lines().findFirst().orElse(""));
        }
    }

    static synchronized void say(String line) {
        System.out.println(line);
    }
}
