package spring;

import java.util.Map;
import org.springframework.boot.Banner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;

/**
 * {@code provider NAME ADDRESS PORT SESSION_MS} or {@code consumer NAME ADDRESS PORT SESSION_MS}. Both register themselves, as applications with
 * the starter do.
 */
@SpringBootApplication
public class Main {
    public static void main(String[] args) {
        SpringApplication application = new SpringApplication(Main.class);
        // Standard output belongs to the bench.
        application.setBannerMode(Banner.Mode.OFF);
        application.setAdditionalProfiles(args[0]);
        application.setDefaultProperties(Map.of(
                "spring.application.name", args[0].equals("provider") ? "spring-greeter" : "spring-asker",
                "apps.name", args[1],
                "server.address", "127.0.0.1",
                "server.port", args[3],
                "spring.cloud.zookeeper.connect-string", args[2],
                "spring.cloud.zookeeper.session-timeout", args[4] + "ms",
                "spring.cloud.zookeeper.discovery.instance-host", "127.0.0.1",
                // So that calls follow the list within a test's time; 35 s by default.
                "spring.cloud.loadbalancer.cache.ttl", "1s"));
        application.run();
        say("ready");
    }

    static synchronized void say(String line) {
        System.out.println(line);
    }
}
