package compat.jetcd;

import static compat.Run.equal;

import compat.Run;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Watch.Listener;
import io.etcd.jetcd.Watch.Watcher;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.watch.WatchEvent;
import io.etcd.jetcd.watch.WatchResponse;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** A watch, and what it brought. */
final class Events implements Listener {
    private final BlockingQueue<WatchEvent> events = new LinkedBlockingQueue<>();
    private final CompletableFuture<Void> created = new CompletableFuture<>();
    private final CompletableFuture<Throwable> ended = new CompletableFuture<>();
    private Watcher watcher;

    /** Watches, and returns once the server has confirmed it. */
    static Events of(Run run, Client client, String key, WatchOption.Builder option) throws Exception {
        Events events = start(run, client, key, option);
        Etcd.get(events.created, 5000);
        return events;
    }

    /** Watches without waiting for the confirmation: it may never come. */
    static Events start(Run run, Client client, String key, WatchOption.Builder option) {
        Events events = new Events();
        events.watcher = run.own(client.getWatchClient().watch(Etcd.bytes(key), option.withCreateNotify(true).build(), events));
        return events;
    }

    static WatchOption.Builder key() {
        return WatchOption.builder();
    }

    static WatchOption.Builder prefix() {
        return WatchOption.builder().isPrefix(true);
    }

    void cancel() {
        watcher.close();
    }

    /** The error that ended the watch. */
    Throwable end(long limitMillis) throws Exception {
        return Etcd.get(ended, limitMillis);
    }

    /** The next event, which comes in time. */
    WatchEvent next(long limitMillis) throws InterruptedException {
        WatchEvent event = events.poll(limitMillis, TimeUnit.MILLISECONDS);
        if (event == null) {
            throw new AssertionError("no event within " + limitMillis + " ms" + (ended.isDone() ? ", the watch ended with " + ended.getNow(null) : ""));
        }
        return event;
    }

    WatchEvent put(String key, String value, long revision) throws InterruptedException {
        WatchEvent event = next(5000);
        equal("event", "PUT " + key + "=" + value + " @" + revision, text(event));
        return event;
    }

    WatchEvent delete(String key, long revision) throws InterruptedException {
        WatchEvent event = next(5000);
        equal("event", "DELETE " + key + "= @" + revision, text(event));
        return event;
    }

    /** No event within this time. */
    void silent(long millis) throws InterruptedException {
        WatchEvent event = events.poll(millis, TimeUnit.MILLISECONDS);
        equal("event", "none", event == null ? "none" : text(event));
    }

    @Override
    public void onNext(WatchResponse response) {
        if (response.isCreatedNotify()) {
            created.complete(null);
        }
        events.addAll(response.getEvents());
    }

    @Override
    public void onError(Throwable error) {
        ended.complete(error);
        created.completeExceptionally(error);
    }

    @Override
    public void onCompleted() {
        ended.complete(null);
    }

    private static String text(WatchEvent event) {
        return event.getEventType() + " " + Etcd.text(event.getKeyValue().getKey()) + "=" + Etcd.text(event.getKeyValue().getValue()) + " @" + event.getKeyValue().getModRevision();
    }
}
