package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;

/** Both of Curator's recipes, each with three contenders. */
public final class Election implements Scenario {
    private final List<Contender> latches = new ArrayList<>();
    private final List<Contender> selectors = new ArrayList<>();

    @Override
    public void run(Run run) throws Exception {
        String root = Cf.root(run, Cf.connect(run));
        run.step("one", () -> {
            for (int i = 0; i < 3; i++) {
                latches.add(new Latch(Cf.connect(run), root + "/latch", "latch " + i));
                selectors.add(new Selector(Cf.connect(run), root + "/selector"));
            }
            for (List<Contender> group : List.of(latches, selectors)) {
                oneLeads(group);
                Run.pause(500);
                equal("leaders", 1, leaders(group));
            }
        });
        run.step("follows", () -> {
            for (List<Contender> group : List.of(latches, selectors)) {
                Contender leader = leader(group);
                leader.client().close();
                group.remove(leader);
                oneLeads(group);
            }
        });
        run.step("last", () -> {
            for (List<Contender> group : List.of(latches, selectors)) {
                Contender leader = leader(group);
                leader.resign();
                group.remove(leader);
                oneLeads(group);
            }
        });
    }

    private static void oneLeads(List<Contender> group) throws Exception {
        eventually("leaders among " + group.get(0).getClass().getSimpleName(), 3000, 1, () -> leaders(group));
    }

    private static int leaders(List<Contender> group) {
        return (int) group.stream().filter(Contender::leads).count();
    }

    private static Contender leader(List<Contender> group) {
        return group.stream().filter((Predicate<Contender>) Contender::leads).findFirst().orElseThrow();
    }

    private interface Contender {
        CuratorFramework client();

        boolean leads();

        void resign() throws Exception;
    }

    private static final class Latch implements Contender {
        private final CuratorFramework client;
        private final LeaderLatch latch;

        Latch(CuratorFramework client, String path, String id) throws Exception {
            this.client = client;
            this.latch = new LeaderLatch(client, path, id);
            latch.start();
        }

        @Override
        public CuratorFramework client() {
            return client;
        }

        @Override
        public boolean leads() {
            return latch.hasLeadership();
        }

        @Override
        public void resign() throws Exception {
            latch.close();
        }
    }

    private static final class Selector extends LeaderSelectorListenerAdapter implements Contender {
        private final CuratorFramework client;
        private final LeaderSelector selector;

        Selector(CuratorFramework client, String path) {
            this.client = client;
            this.selector = new LeaderSelector(client, path, this);
            selector.start();
        }

        /** Leads until interrupted, by a resignation or by the loss of the session. */
        @Override
        public void takeLeadership(CuratorFramework client) throws InterruptedException {
            Thread.sleep(Long.MAX_VALUE);
        }

        @Override
        public CuratorFramework client() {
            return client;
        }

        @Override
        public boolean leads() {
            return selector.hasLeadership();
        }

        @Override
        public void resign() {
            selector.close();
        }
    }
}
