package compat.curator;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;

public final class Lock implements Scenario {
    private String path;

    @Override
    public void run(Run run) throws Exception {
        CuratorFramework watcher = Cf.connect(run);
        String root = Cf.root(run, watcher);
        path = root + "/lock";
        Contender a = new Contender(Cf.connect(run));
        Contender b = new Contender(Cf.connect(run));
        run.step("acquire", () -> equal("A has it", true, a.acquire(5000).get()));
        run.step("refused", () -> equal("B has it", false, b.acquire(500).get()));
        run.step("passed", () -> {
            Future<Boolean> waiting = b.acquire(10_000);
            Run.pause(200);
            equal("B waits", false, waiting.isDone());
            a.release().get();
            equal("B has it", true, waiting.get(2, TimeUnit.SECONDS));
        });
        run.step("died", () -> {
            Future<Boolean> waiting = a.acquire(10_000);
            Run.pause(200);
            equal("A waits", false, waiting.isDone());
            b.client.close();
            equal("A has it", true, waiting.get(2, TimeUnit.SECONDS));
            a.release().get();
        });
        run.step("counter", () -> {
            String counter = Cf.make(watcher, root + "/counter", "0");
            List<Future<Object>> all = new ArrayList<>();
            for (Contender contender : List.of(a, new Contender(Cf.connect(run)), new Contender(Cf.connect(run)))) {
                all.add(contender.submit(() -> {
                    for (int i = 0; i < 10; i++) {
                        equal("acquired within 20 s", true, contender.mutex.acquire(20, TimeUnit.SECONDS));
                        int value = Integer.parseInt(Cf.get(contender.client, counter));
                        Cf.set(contender.client, counter, "" + (value + 1));
                        contender.mutex.release();
                    }
                    return null;
                }));
            }
            for (Future<Object> one : all) {
                one.get();
            }
            equal("counter", "30", Cf.get(watcher, counter));
        });
        run.step("clean", () -> equal("contenders", List.of(), Cf.childrenIfThere(watcher, path)));
    }

    /** A mutex belongs to the thread that took it: one thread for each contender. */
    private final class Contender {
        private final ExecutorService thread = Executors.newSingleThreadExecutor(body -> {
            Thread one = new Thread(body);
            one.setDaemon(true);
            return one;
        });
        private final CuratorFramework client;
        private final InterProcessMutex mutex;

        Contender(CuratorFramework client) {
            this.client = client;
            this.mutex = new InterProcessMutex(client, path);
        }

        Future<Boolean> acquire(long millis) {
            return submit(() -> mutex.acquire(millis, TimeUnit.MILLISECONDS));
        }

        Future<Object> release() {
            return submit(() -> {
                mutex.release();
                return null;
            });
        }

        <T> Future<T> submit(Callable<T> call) {
            return thread.submit(call);
        }
    }
}
