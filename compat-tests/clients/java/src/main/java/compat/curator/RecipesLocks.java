package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;

public final class RecipesLocks implements Scenario {
    private Run run;
    private String root;
    private Contender a;
    private Contender b;
    private Contender c;
    private Contender d;

    @Override
    public void run(Run run) throws Exception {
        this.run = run;
        a = new Contender();
        b = new Contender();
        c = new Contender();
        d = new Contender();
        root = Cf.root(run, a.client);
        String shared = root + "/shared";
        run.step("read-write", () -> {
            List<InterProcessLock> readers = List.of(read(a, shared), read(b, shared), read(d, shared));
            InterProcessReadWriteLock.WriteLock writer = write(c, shared);
            equal("the first reader has it", true, a.takes(readers.get(0), 5000).get());
            equal("the second reader has it", true, b.takes(readers.get(1), 5000).get());
            Future<Boolean> writing = waits("the writer", c.takes(writer, 20_000));
            Cf.sync(c.client, root);
            equal("writers in the queue", 1, writer.getParticipantNodes().size());
            Future<Boolean> reading = waits("the third reader", d.takes(readers.get(2), 20_000));
            a.gives(readers.get(0));
            Run.pause(300);
            equal("the writer has it while a reader holds it", false, writing.isDone());
            b.gives(readers.get(1));
            passes("the writer", writing);
            Run.pause(300);
            equal("the third reader has it while the writer holds it", false, reading.isDone());
            c.gives(writer);
            passes("the third reader", reading);
            d.gives(readers.get(2));
        });
        run.step("reader-dies", () -> {
            Contender dying = new Contender();
            equal("the reader has it", true, dying.takes(read(dying, shared), 5000).get());
            InterProcessLock writer = write(c, shared);
            Future<Boolean> writing = waits("the writer", c.takes(writer, 20_000));
            dying.client.close();
            passes("the writer", writing);
            c.gives(writer);
        });
        String counted = root + "/counted";
        run.step("semaphore", () -> {
            Lease first = lease(a, counted, 5000).get();
            Lease second = lease(b, counted, 5000).get();
            equal("two have a lease", List.of(true, true), List.of(first != null, second != null));
            Cf.sync(d.client, root);
            equal("participants", 2, new InterProcessSemaphoreV2(d.client, counted, 2).getParticipantNodes().size());
            equal("the third has none within 500 ms", null, lease(c, counted, 500).get());
            Future<Lease> third = waits("the third", lease(c, counted, 20_000));
            first.close();
            Lease got = third.get(2, TimeUnit.SECONDS);
            equal("the third has one", true, got != null);
            second.close();
            got.close();
        });
        run.step("semaphore-dies", () -> {
            Contender dying = new Contender();
            equal("one has a lease", true, lease(dying, counted, 5000).get() != null);
            Lease other = lease(b, counted, 5000).get();
            equal("another has a lease", true, other != null);
            Future<Lease> next = waits("the next", lease(c, counted, 20_000));
            dying.client.close();
            Lease got = next.get(2, TimeUnit.SECONDS);
            equal("the next has one", true, got != null);
            other.close();
            got.close();
        });
        run.step("again", () -> {
            InterProcessLock mine = new InterProcessMutex(a.client, root + "/again");
            InterProcessLock other = new InterProcessMutex(b.client, root + "/again");
            equal("taken", true, a.takes(mine, 5000).get());
            equal("taken again", true, a.takes(mine, 5000).get());
            a.gives(mine);
            equal("the other has it within 500 ms", false, b.takes(other, 500).get());
            Future<Boolean> waiting = waits("the other", b.takes(other, 20_000));
            a.gives(mine);
            passes("the other", waiting);
            b.gives(other);
            InterProcessLock once = new InterProcessSemaphoreMutex(a.client, root + "/once");
            InterProcessLock others = new InterProcessSemaphoreMutex(b.client, root + "/once");
            equal("taken", true, a.takes(once, 5000).get());
            equal("taken again", false, a.takes(once, 500).get());
            waiting = waits("the other", b.takes(others, 20_000));
            a.gives(once);
            passes("the other", waiting);
            b.gives(others);
        });
        run.step("given-up", () -> {
            String path = root + "/queue";
            InterProcessMutex first = new InterProcessMutex(a.client, path);
            InterProcessMutex second = new InterProcessMutex(b.client, path);
            InterProcessMutex third = new InterProcessMutex(c.client, path);
            equal("the first has it", true, a.takes(first, 5000).get());
            Future<Boolean> givingUp = b.takes(second, 1500);
            eventually("in the queue", 1000, 2, () -> first.getParticipantNodes().size());
            Future<Boolean> waiting = waits("the third", c.takes(third, 20_000));
            Cf.sync(a.client, root);
            equal("in the queue", 3, first.getParticipantNodes().size());
            equal("the second has it", false, givingUp.get(3, TimeUnit.SECONDS));
            Cf.sync(a.client, root);
            equal("in the queue", 2, first.getParticipantNodes().size());
            a.gives(first);
            passes("the third", waiting);
            c.gives(third);
        });
        run.step("several", () -> {
            List<String> paths = List.of(root + "/one", root + "/two");
            InterProcessLock both = new InterProcessMultiLock(a.client, paths);
            InterProcessLock two = new InterProcessMutex(b.client, paths.get(1));
            InterProcessLock one = new InterProcessMutex(c.client, paths.get(0));
            equal("one of the two", true, b.takes(two, 5000).get());
            equal("both are got within 500 ms", false, a.takes(both, 500).get());
            equal("the other of the two is free", true, c.takes(one, 2000).get());
            c.gives(one);
            b.gives(two);
            equal("both are got", true, a.takes(both, 5000).get());
            equal("one is got by another", false, c.takes(one, 500).get());
            equal("two is got by another", false, b.takes(two, 500).get());
            a.gives(both);
            equal("one is got then", true, c.takes(one, 2000).get());
            c.gives(one);
        });
        run.step("revoked", () -> {
            InterProcessMutex held = new InterProcessMutex(a.client, root + "/revoked");
            InterProcessMutex wanted = new InterProcessMutex(b.client, root + "/revoked");
            LinkedBlockingQueue<String> asked = new LinkedBlockingQueue<>();
            held.makeRevocable(lock -> asked.add("asked"));
            equal("the holder has it", true, a.takes(held, 5000).get());
            Future<Boolean> waiting = waits("the other", b.takes(wanted, 20_000));
            Cf.sync(b.client, root);
            Collection<String> queue = wanted.getParticipantNodes();
            Revoker.attemptRevoke(b.client, queue.iterator().next());
            equal("the holder is told", "asked", asked.poll(2, TimeUnit.SECONDS));
            a.gives(held);
            passes("the other", waiting);
            b.gives(wanted);
        });
        run.lacks("for-a-time", "Curator has no lease by the clock");
        run.step("clean", () -> {
            Cf.sync(a.client, root);
            for (String path : List.of("shared", "again", "queue", "one", "two", "revoked", "counted/leases", "counted/locks", "once/leases", "once/locks")) {
                equal("contenders below " + path, List.of(), Cf.childrenIfThere(a.client, root + "/" + path));
            }
        });
    }

    private static InterProcessLock read(Contender of, String path) {
        return new InterProcessReadWriteLock(of.client, path).readLock();
    }

    private static InterProcessReadWriteLock.WriteLock write(Contender of, String path) {
        return new InterProcessReadWriteLock(of.client, path).writeLock();
    }

    private static Future<Lease> lease(Contender of, String path, long millis) {
        return of.submit(() -> new InterProcessSemaphoreV2(of.client, path, 2).acquire(millis, TimeUnit.MILLISECONDS));
    }

    private static <T> Future<T> waits(String what, Future<T> call) {
        Run.pause(500);
        equal(what + " has it", false, call.isDone());
        return call;
    }

    private static void passes(String what, Future<Boolean> call) throws Exception {
        equal(what + " has it", true, call.get(2, TimeUnit.SECONDS));
    }

    /** A session with a thread of its own: a mutex belongs to the thread that took it. */
    private final class Contender {
        private final ExecutorService thread = Executors.newSingleThreadExecutor(body -> {
            Thread one = new Thread(body);
            one.setDaemon(true);
            return one;
        });
        private final CuratorFramework client;

        Contender() throws Exception {
            client = Cf.connect(run);
        }

        Future<Boolean> takes(InterProcessLock lock, long millis) {
            return submit(() -> lock.acquire(millis, TimeUnit.MILLISECONDS));
        }

        void gives(InterProcessLock lock) throws Exception {
            submit(() -> {
                lock.release();
                return null;
            }).get(5, TimeUnit.SECONDS);
        }

        <T> Future<T> submit(Callable<T> call) {
            return thread.submit(call);
        }
    }
}
