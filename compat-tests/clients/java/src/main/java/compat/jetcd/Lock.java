package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lock.LockResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** The server's lock service. */
public final class Lock implements Scenario {
    private String name;
    private String keyOfA;
    private String keyOfB;
    private CompletableFuture<LockResponse> waitingB;

    @Override
    public void run(Run run) throws Exception {
        name = run.prefix() + "/lock";
        Contender a = new Contender(run);
        Contender b = new Contender(run);
        run.step("acquire", () -> {
            keyOfA = Etcd.text(Etcd.get(a.lock()).getKey());
            equal("key", name + "/" + Long.toHexString(a.lease), keyOfA);
            equal("lease of the key", a.lease, Etcd.pair(a.client, keyOfA).getLease());
        });
        run.step("refused", () -> {
            waitingB = b.lock();
            Run.pause(500);
            equal("B has it", false, waitingB.isDone());
        });
        run.step("passed", () -> {
            a.unlock(keyOfA);
            keyOfB = Etcd.text(Etcd.get(waitingB, 2000).getKey());
            equal("key of A", null, Etcd.pair(a.client, keyOfA));
        });
        run.step("died", () -> {
            CompletableFuture<LockResponse> waitingA = a.lock();
            Run.pause(300);
            equal("A has it", false, waitingA.isDone());
            Etcd.get(b.client.getLeaseClient().revoke(b.lease));
            a.unlock(Etcd.text(Etcd.get(waitingA, 4000).getKey()));
            equal("key of B", null, Etcd.pair(a.client, keyOfB));
        });
        run.step("counter", () -> {
            String counter = run.prefix() + "/counter";
            Etcd.put(a.client, counter, "0");
            List<CompletableFuture<Void>> all = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                Contender one = new Contender(run);
                CompletableFuture<Void> through = new CompletableFuture<>();
                all.add(through);
                Run.daemon("counter " + i, () -> {
                    try {
                        for (int round = 0; round < 10; round++) {
                            String key = Etcd.text(Etcd.get(one.lock(), 20_000).getKey());
                            int value = Integer.parseInt(Etcd.value(one.client, counter));
                            Etcd.put(one.client, counter, "" + (value + 1));
                            one.unlock(key);
                        }
                        through.complete(null);
                    } catch (Throwable e) {
                        through.completeExceptionally(e);
                    }
                });
            }
            for (CompletableFuture<Void> one : all) {
                Etcd.get(one, 30_000);
            }
            equal("counter", "30", Etcd.value(a.client, counter));
        });
    }

    private final class Contender {
        private final Client client;
        private final long lease;

        Contender(Run run) throws Exception {
            client = Etcd.connect(run);
            lease = Etcd.get(client.getLeaseClient().grant(30)).getID();
            holds("lease", lease > 0, lease);
        }

        CompletableFuture<LockResponse> lock() {
            return client.getLockClient().lock(Etcd.bytes(name), lease);
        }

        void unlock(String key) throws Exception {
            Etcd.get(client.getLockClient().unlock(Etcd.bytes(key)));
        }
    }
}
