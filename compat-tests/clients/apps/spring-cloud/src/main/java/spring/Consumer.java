package spring;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.springframework.boot.context.event.ApplicationReadyEvent;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.cloud.client.discovery.event.HeartbeatEvent;
import org.springframework.cloud.client.loadbalancer.LoadBalanced;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Profile;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.context.event.EventListener;
import org.springframework.web.client.RestClient;

/** Asks for the list and calls the service, ten times a second each, and says what the watch of the tree reports. */
@Profile("consumer")
@Configuration
class Consumer {
    private final DiscoveryClient discovery;
    private final List<Thread> threads = new CopyOnWriteArrayList<>();
    private volatile boolean stopping;

    Consumer(DiscoveryClient discovery) {
        this.discovery = discovery;
    }

    @Bean
    @LoadBalanced
    static RestClient.Builder balanced() {
        return RestClient.builder();
    }

    @EventListener
    void changed(HeartbeatEvent event) {
        Main.say("event tree");
    }

    @EventListener
    void started(ApplicationReadyEvent event) {
        RestClient client = event.getApplicationContext().getBean(RestClient.Builder.class).build();
        repeat("discovery", "list", () -> discovery.getInstances("spring-greeter").stream()
                .map(instance -> String.valueOf(instance.getPort()))
                .sorted()
                .collect(Collectors.joining(",")));
        repeat("balanced", "call", () -> client.get().uri("http://spring-greeter/name").retrieve().body(String.class));
    }

    /** Nobody calls through what is being closed, and a call that is under way comes to its end: interrupted, it would log an error. */
    @EventListener
    void stopped(ContextClosedEvent event) throws InterruptedException {
        stopping = true;
        for (Thread thread : threads) {
            thread.join(10_000);
        }
    }

    private interface Ask {
        String answer() throws Exception;
    }

    private void repeat(String how, String word, Ask ask) {
        Thread thread = new Thread(() -> {
            while (!stopping) {
                try {
                    Main.say(word + " " + how + " " + ask.answer());
                } catch (Exception error) {
                    Main.say("failed " + how + " " + String.valueOf(error.getMessage()).lines().findFirst().orElse(""));
                }
                LockSupport.parkNanos(100_000_000);
            }
        }, how);
        threads.add(thread);
        thread.setDaemon(true);
        thread.start();
    }
}
