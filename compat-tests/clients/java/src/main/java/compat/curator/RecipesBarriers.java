package compat.curator;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;

public final class RecipesBarriers implements Scenario {
    private final List<CuratorFramework> clients = new ArrayList<>();
    private String path;

    @Override
    public void run(Run run) throws Exception {
        for (int i = 0; i < 3; i++) {
            clients.add(Cf.connect(run));
        }
        CuratorFramework a = clients.get(0);
        CuratorFramework b = clients.get(1);
        String root = Cf.root(run, a);
        path = root + "/double";
        run.step("barrier", () -> {
            DistributedBarrier barrier = new DistributedBarrier(a, root + "/barrier");
            barrier.setBarrier();
            List<Future<Boolean>> waiting = new ArrayList<>();
            for (CuratorFramework client : clients.subList(1, 3)) {
                Cf.sync(client, root);
                waiting.add(start(() -> new DistributedBarrier(client, root + "/barrier").waitOnBarrier(10, TimeUnit.SECONDS)));
            }
            none("goes on while the barrier is there", waiting);
            barrier.removeBarrier();
            all("goes on", waiting);
        });
        run.step("none", () -> {
            long start = System.nanoTime();
            equal("it goes on", true, new DistributedBarrier(b, root + "/none").waitOnBarrier(5, TimeUnit.SECONDS));
            long took = (System.nanoTime() - start) / 1_000_000;
            holds("milliseconds, below 1000", took < 1000, took);
        });
        run.step("in-time", () -> {
            new DistributedBarrier(a, root + "/stays").setBarrier();
            Cf.sync(b, root);
            equal("it goes on", false, new DistributedBarrier(b, root + "/stays").waitOnBarrier(500, TimeUnit.MILLISECONDS));
            new DistributedBarrier(a, root + "/stays").removeBarrier();
        });
        run.step("enter", () -> allIn());
        run.step("leave", () -> {
            List<Future<Boolean>> going = new ArrayList<>(List.of(leaving(0), leaving(1)));
            none("is out before the third left", going);
            going.add(leaving(2));
            all("is out", going);
        });
        run.step("dies", () -> {
            allIn();
            clients.get(2).close();
            all("is out", List.of(leaving(0), leaving(1)));
        });
        run.step("clean", () -> {
            Cf.sync(a, root);
            equal("below the barrier", List.of(), Cf.childrenIfThere(a, path));
        });
    }

    private final DistributedDoubleBarrier[] barriers = new DistributedDoubleBarrier[3];

    /** Three enter, the last of them later. */
    private void allIn() throws Exception {
        List<Future<Boolean>> entering = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            barriers[i] = new DistributedDoubleBarrier(clients.get(i), path, 3);
        }
        for (DistributedDoubleBarrier barrier : List.of(barriers[0], barriers[1])) {
            entering.add(start(() -> barrier.enter(20, TimeUnit.SECONDS)));
        }
        none("is in before the third came", entering);
        entering.add(start(() -> barriers[2].enter(20, TimeUnit.SECONDS)));
        all("is in", entering);
    }

    private Future<Boolean> leaving(int at) {
        return start(() -> barriers[at].leave(20, TimeUnit.SECONDS));
    }

    private static void none(String what, List<Future<Boolean>> calls) {
        Run.pause(500);
        for (Future<Boolean> call : calls) {
            equal("one " + what, false, call.isDone());
        }
    }

    private static void all(String what, List<Future<Boolean>> calls) throws Exception {
        long end = System.nanoTime() + 2_000_000_000L;
        for (Future<Boolean> call : calls) {
            equal("each " + what, true, call.get(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS));
        }
    }

    private static <T> Future<T> start(Callable<T> call) {
        CompletableFuture<T> done = new CompletableFuture<>();
        Run.daemon("waiting", () -> {
            try {
                done.complete(call.call());
            } catch (Throwable e) {
                done.completeExceptionally(e);
            }
        });
        return done;
    }
}
