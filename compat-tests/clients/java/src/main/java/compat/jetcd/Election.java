package compat.jetcd;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.election.CampaignResponse;
import io.etcd.jetcd.election.LeaderKey;
import io.etcd.jetcd.election.LeaderResponse;
import io.etcd.jetcd.election.NoLeaderException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The server's election service. */
public final class Election implements Scenario {
    private final BlockingQueue<String> observed = new LinkedBlockingQueue<>();
    private LeaderKey first;
    private CompletableFuture<CampaignResponse> second;

    @Override
    public void run(Run run) throws Exception {
        Client a = Etcd.connect(run);
        Client b = Etcd.connect(run);
        Client observer = Etcd.connect(run);
        String name = run.prefix() + "/election";
        long leaseA = Etcd.get(a.getLeaseClient().grant(30)).getID();
        long leaseB = Etcd.get(b.getLeaseClient().grant(30)).getID();
        run.step("one", () -> {
            first = Etcd.get(a.getElectionClient().campaign(Etcd.bytes(name), leaseA, Etcd.bytes("a"))).getLeader();
            equal("name", name, Etcd.text(first.getName()));
            equal("lease", leaseA, first.getLease());
            second = b.getElectionClient().campaign(Etcd.bytes(name), leaseB, Etcd.bytes("b"));
            Run.pause(500);
            equal("the second leads", false, second.isDone());
            equal("leader", "a", leader(observer, name));
        });
        run.step("proclaim", () -> {
            observer.getElectionClient().observe(Etcd.bytes(name), new io.etcd.jetcd.Election.Listener() {
                @Override
                public void onNext(LeaderResponse response) {
                    observed.add(Etcd.text(response.getKv().getValue()));
                }

                @Override
                public void onError(Throwable error) {
                    observed.add("error " + error);
                }

                @Override
                public void onCompleted() {
                    observed.add("completed");
                }
            });
            equal("observed", "a", observed.poll(3, TimeUnit.SECONDS));
            Etcd.get(a.getElectionClient().proclaim(first, Etcd.bytes("a again")));
            equal("observed", "a again", observed.poll(3, TimeUnit.SECONDS));
            equal("leader", "a again", leader(observer, name));
        });
        run.step("resign", () -> {
            Etcd.get(a.getElectionClient().resign(first));
            equal("lease of the next leader", leaseB, Etcd.get(second, 3000).getLeader().getLease());
            equal("observed", "b", observed.poll(3, TimeUnit.SECONDS));
            equal("leader", "b", leader(observer, name));
        });
        run.step("last", () -> {
            Etcd.get(b.getLeaseClient().revoke(leaseB));
            Run.refused("leader", NoLeaderException.class, () -> leader(observer, name));
        });
    }

    private static String leader(Client client, String name) throws Exception {
        return Etcd.text(Etcd.get(client.getElectionClient().leader(Etcd.bytes(name))).getKv().getValue());
    }
}
