package compat.zookeeper;

import static compat.Run.equal;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;

/** A watcher that keeps what it was told, nodes and connection states apart. */
public final class Events implements Watcher {
    private final BlockingQueue<WatchedEvent> nodes = new LinkedBlockingQueue<>();
    private final BlockingQueue<KeeperState> states = new LinkedBlockingQueue<>();

    @Override
    public void process(WatchedEvent event) {
        if (event.getType() == EventType.None) {
            states.add(event.getState());
        } else {
            nodes.add(event);
        }
    }

    /** The next event, which comes within 3 s, is this one. */
    public void next(EventType type, String path) throws InterruptedException {
        next(type, path, 3000);
    }

    /** The next event, which comes in time, is this one. */
    public void next(EventType type, String path, long millis) throws InterruptedException {
        equal("event", type + " " + path, text(nodes.poll(millis, TimeUnit.MILLISECONDS)));
    }

    /** Exactly one event: this one, and no other within half a second. */
    public void once(EventType type, String path) throws InterruptedException {
        next(type, path);
        silent(500);
    }

    /** No event within this time. */
    public void silent(long millis) throws InterruptedException {
        equal("event", "none", text(nodes.poll(millis, TimeUnit.MILLISECONDS)));
    }

    /** Waits until this state was told, whatever came before it. */
    public void state(KeeperState wanted, long millis) throws InterruptedException {
        long end = System.nanoTime() + millis * 1_000_000;
        KeeperState last = null;
        while (last != wanted) {
            KeeperState state = states.poll(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS);
            if (state == null) {
                throw new AssertionError("state within " + millis + " ms: expected " + wanted + ", last told " + last);
            }
            last = state;
        }
    }

    /** Forgets what was told of states so far. */
    public void forgetStates() {
        states.clear();
    }

    private static String text(WatchedEvent event) {
        return event == null ? "none" : event.getType() + " " + event.getPath();
    }
}
