package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.recipes.shared.SharedValue;
import org.apache.curator.framework.recipes.shared.VersionedValue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;

public final class RecipesQueues implements Scenario {
    private static final QueueSerializer<String> TEXT = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String item) {
            return Cf.bytes(item);
        }

        @Override
        public String deserialize(byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
    };
    private Run run;

    @Override
    public void run(Run run) throws Exception {
        this.run = run;
        List<CuratorFramework> clients = List.of(Cf.connect(run), Cf.connect(run), Cf.connect(run));
        CuratorFramework a = clients.get(0);
        CuratorFramework b = clients.get(1);
        CuratorFramework c = clients.get(2);
        String root = Cf.root(run, a);
        run.step("order", () -> {
            String path = root + "/order";
            fill(path, a, "a", b, "b");
            Taker taker = new Taker();
            run.own(taker.of(c, path).buildQueue()).start();
            eventually("entries", 10_000, 40, taker.got::size);
            Run.pause(300);
            for (String name : List.of("a", "b")) {
                equal("those of " + name, entries(name), taker.got.stream().filter(entry -> entry.startsWith(name)).toList());
            }
            equal("entries", 40, taker.got.size());
            eventually("entries left", 2000, List.of(), () -> Cf.children(a, path));
        });
        run.step("shared", () -> {
            String path = root + "/shared";
            // Slow ones, so that there is something left for the other.
            Taker first = new Taker(Integer.MAX_VALUE, 20);
            Taker second = new Taker(Integer.MAX_VALUE, 20);
            run.own(first.of(a, path).lockPath(path + "-locks").buildQueue()).start();
            run.own(second.of(b, path).lockPath(path + "-locks").buildQueue()).start();
            fill(path, c, "x", c, "y");
            eventually("entries", 15_000, 40, () -> first.got.size() + second.got.size());
            holds("both took some", !first.got.isEmpty() && !second.got.isEmpty(), first.got.size());
            List<String> wanted = Stream.concat(entries("x").stream(), entries("y").stream()).toList();
            equal("what both got", wanted, Stream.concat(first.got.stream(), second.got.stream()).sorted().toList());
            eventually("entries left", 2000, List.of(), () -> Cf.children(a, path));
        });
        run.step("priority", () -> {
            String path = root + "/priority";
            DistributedPriorityQueue<String> putting = run.own(QueueBuilder.builder(a, null, TEXT, path).buildPriorityQueue(0));
            putting.start();
            putting.put("late", 900);
            putting.put("first of 5", 5);
            putting.put("middle", 100);
            putting.put("second of 5", 5);
            equal("put", true, putting.flushPuts(5, TimeUnit.SECONDS));
            Taker taker = new Taker();
            run.own(taker.of(b, path).buildPriorityQueue(0)).start();
            eventually("order", 5000, List.of("first of 5", "second of 5", "middle", "late"), () -> List.copyOf(taker.got));
        });
        run.step("held", () -> {
            String path = root + "/held";
            CuratorFramework dying = Cf.connect(run);
            Taker never = new Taker(0, 0);
            never.of(dying, path).lockPath(path + "-locks").buildQueue().start();
            DistributedQueue<String> putting = run.own(QueueBuilder.builder(a, null, TEXT, path).buildQueue());
            putting.start();
            putting.put("one");
            equal("the taker has it", "one", never.asked.poll(5, TimeUnit.SECONDS));
            Taker other = new Taker();
            run.own(other.of(b, path).lockPath(path + "-locks").buildQueue()).start();
            Run.pause(500);
            equal("what came to the other", List.of(), List.copyOf(other.got));
            dying.close();
            // The queue looks again when its list changes.
            putting.put("two");
            eventually("what came to the other", 5000, List.of("one", "two"), () -> List.copyOf(other.got));
            eventually("entries left", 2000, List.of(), () -> Cf.children(a, path));
            Taker third = new Taker();
            run.own(third.of(c, path).lockPath(path + "-locks").buildQueue()).start();
            Run.pause(500);
            equal("what came to a third", List.of(), List.copyOf(third.got));
        });
        run.step("later", () -> {
            String path = root + "/later";
            Taker one = new Taker();
            Taker other = new Taker();
            run.own(one.of(a, path).buildDelayQueue()).start();
            run.own(other.of(b, path).buildDelayQueue()).start();
            DistributedDelayQueue<String> putting = run.own(QueueBuilder.builder(c, null, TEXT, path).putInBackground(false).buildDelayQueue());
            putting.start();
            putting.put("later", System.currentTimeMillis() + 2000);
            Run.pause(1000);
            equal("what came within 1 s", List.of(), both(one, other));
            eventually("what came", 4000, List.of("later"), () -> both(one, other));
            Run.pause(300);
            equal("what came", List.of("later"), both(one, other));
        });
        run.step("named", () -> {
            String path = root + "/named";
            DistributedIdQueue<String> putting = run.own(QueueBuilder.builder(a, null, TEXT, path).putInBackground(false).buildIdQueue());
            putting.start();
            for (String name : List.of("first", "second", "third")) {
                putting.put("entry " + name, name);
            }
            Cf.sync(b, root);
            DistributedIdQueue<String> taking = run.own(QueueBuilder.builder(b, null, TEXT, path).buildIdQueue());
            taking.start();
            equal("taken back", 1, taking.remove("second"));
            equal("taken back again", 0, taking.remove("second"));
            Taker taker = new Taker();
            Cf.sync(c, root);
            run.own(taker.of(c, path).buildIdQueue()).start();
            eventually("what came", 5000, List.of("entry first", "entry third"), () -> List.copyOf(taker.got));
            Run.pause(300);
            equal("what came", 2, taker.got.size());
        });
        run.step("counter", () -> {
            String path = root + "/counter";
            Queue<Long> told = new ConcurrentLinkedQueue<>();
            List<CompletableFuture<Void>> adding = new ArrayList<>();
            for (CuratorFramework client : clients) {
                // Each addition is made anew after another's, which with three at once goes on for a while.
                DistributedAtomicLong counter = new DistributedAtomicLong(client, path, new RetryNTimes(200, 10));
                adding.add(CompletableFuture.runAsync(() -> add(counter, told)));
            }
            for (CompletableFuture<Void> one : adding) {
                one.get(20, TimeUnit.SECONDS);
            }
            Cf.sync(a, root);
            equal("value", 30L, new DistributedAtomicLong(a, path, new RetryNTimes(0, 0)).get().postValue());
            equal("what they were told", LongStream.rangeClosed(1, 30).boxed().toList(), told.stream().sorted().toList());
            // The same by a lock, where the first try does not pass.
            told.clear();
            adding.clear();
            for (CuratorFramework client : clients) {
                PromotedToLock lock = PromotedToLock.builder().lockPath(root + "/counter-lock").retryPolicy(new RetryNTimes(200, 10)).timeout(20, TimeUnit.SECONDS).build();
                DistributedAtomicLong counter = new DistributedAtomicLong(client, path + "-promoted", new RetryNTimes(0, 0), lock);
                adding.add(CompletableFuture.runAsync(() -> add(counter, told)));
            }
            for (CompletableFuture<Void> one : adding) {
                one.get(20, TimeUnit.SECONDS);
            }
            equal("what they were told", LongStream.rangeClosed(1, 30).boxed().toList(), told.stream().sorted().toList());
        });
        SharedCount[] counts = new SharedCount[2];
        run.step("compared", () -> {
            for (int i = 0; i < 2; i++) {
                counts[i] = run.own(new SharedCount(clients.get(i), root + "/count", 7));
                Cf.sync(clients.get(i), root);
                counts[i].start();
                equal("value", 7, counts[i].getCount());
            }
            VersionedValue<Integer> read = counts[0].getVersionedValue();
            VersionedValue<Integer> same = counts[1].getVersionedValue();
            equal("version", read.getVersion(), same.getVersion());
            equal("the first sets it", true, counts[0].trySetCount(read, 8));
            equal("the second sets it", false, counts[1].trySetCount(same, 9));
            eventually("value for the second", 2000, 8, counts[1]::getCount);
            equal("the second sets it then", true, counts[1].trySetCount(counts[1].getVersionedValue(), 9));
            // The number that is compared by its value.
            DistributedAtomicLong one = new DistributedAtomicLong(a, root + "/number", new RetryNTimes(0, 0));
            DistributedAtomicLong two = new DistributedAtomicLong(b, root + "/number", new RetryNTimes(0, 0));
            equal("made", List.of(true, false), List.of(one.initialize(7L), two.initialize(7L)));
            equal("compared with 7", true, one.compareAndSet(7L, 8L).succeeded());
            Cf.sync(b, root);
            equal("compared with 7 again", false, two.compareAndSet(7L, 9L).succeeded());
            equal("value", 8L, two.get().postValue());
        });
        run.step("value", () -> {
            SharedValue mine = run.own(new SharedValue(a, root + "/value", Cf.bytes("seed")));
            SharedValue others = run.own(new SharedValue(b, root + "/value", Cf.bytes("seed")));
            mine.start();
            Cf.sync(b, root);
            others.start();
            equal("value", "seed", new String(others.getValue()));
            mine.setValue(Cf.bytes("set"));
            eventually("value for the other", 2000, "set", () -> new String(others.getValue()));
            VersionedValue<byte[]> read = mine.getVersionedValue();
            VersionedValue<byte[]> same = others.getVersionedValue();
            equal("version", read.getVersion(), same.getVersion());
            equal("set by both", List.of(true, false), List.of(mine.trySetValue(read, Cf.bytes("mine")), others.trySetValue(same, Cf.bytes("theirs"))));
            eventually("value for the other", 2000, "mine", () -> new String(others.getValue()));
        });
        run.step("told", () -> {
            SharedCount follower = run.own(new SharedCount(c, root + "/count", 7));
            Cf.sync(c, root);
            follower.start();
            equal("value", 9, follower.getCount());
            LinkedBlockingQueue<Integer> told = new LinkedBlockingQueue<>();
            follower.addListener(new SharedCountListener() {
                @Override
                public void countHasChanged(SharedCountReader count, int now) {
                    told.add(now);
                }

                @Override
                public void stateChanged(CuratorFramework client, ConnectionState state) {}
            });
            for (int value = 10; value <= 12; value++) {
                counts[0].setCount(value);
                equal("told within 2 s", value, told.poll(2, TimeUnit.SECONDS));
            }
            equal("told more", null, told.poll(300, TimeUnit.MILLISECONDS));
        });
    }

    private static List<String> entries(String name) {
        return IntStream.range(0, 20).mapToObj(number -> String.format("%s %02d", name, number)).toList();
    }

    /** Two put their 20 entries at once. */
    private void fill(String path, CuratorFramework one, String ones, CuratorFramework two, String twos) throws Exception {
        List<CompletableFuture<Void>> putting = new ArrayList<>();
        for (var producer : List.of(List.of(one, ones), List.of(two, twos))) {
            DistributedQueue<String> queue = run.own(QueueBuilder.builder((CuratorFramework) producer.get(0), null, TEXT, path).putInBackground(false).buildQueue());
            queue.start();
            putting.add(CompletableFuture.runAsync(() -> {
                for (String entry : entries((String) producer.get(1))) {
                    try {
                        queue.put(entry);
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    }
                }
            }));
        }
        for (CompletableFuture<Void> one1 : putting) {
            one1.get(10, TimeUnit.SECONDS);
        }
    }

    private static List<String> both(Taker one, Taker other) {
        return Stream.concat(one.got.stream(), other.got.stream()).toList();
    }

    private static void add(DistributedAtomicLong counter, Queue<Long> told) {
        for (int i = 0; i < 10; i++) {
            try {
                AtomicValue<Long> value = counter.increment();
                holds("the addition passed", value.succeeded(), value.postValue());
                told.add(value.postValue());
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** Takes so many entries, and then waits with the next in hand for ever. */
    private static final class Taker implements QueueConsumer<String> {
        private final Queue<String> got = new ConcurrentLinkedQueue<>();
        private final LinkedBlockingQueue<String> asked = new LinkedBlockingQueue<>();
        private final int most;
        private final long pause;

        Taker() {
            this(Integer.MAX_VALUE, 0);
        }

        Taker(int most, long pause) {
            this.most = most;
            this.pause = pause;
        }

        QueueBuilder<String> of(CuratorFramework client, String path) {
            return QueueBuilder.builder(client, this, TEXT, path).executor(java.util.concurrent.Executors.newSingleThreadExecutor(body -> {
                Thread thread = new Thread(body, "taker");
                thread.setDaemon(true);
                return thread;
            }));
        }

        @Override
        public void consumeMessage(String entry) throws Exception {
            if (got.size() >= most) {
                asked.add(entry);
                new CountDownLatch(1).await();
            }
            Run.pause(pause);
            got.add(entry);
        }

        @Override
        public void stateChanged(CuratorFramework client, ConnectionState state) {}
    }
}
