package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.ClientBuilder;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.PutResponse;
import io.etcd.jetcd.options.PutOption;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The few calls that every scenario makes. */
final class Etcd {
    private Etcd() {}

    static Client connect(Run run) {
        return connect(run, run.address());
    }

    static Client connect(Run run, String address) {
        return run.own(builder(address).build());
    }

    static ClientBuilder builder(String address) {
        return Client.builder().endpoints(Arrays.stream(address.split(",")).map(one -> "http://" + one).toArray(String[]::new)).connectTimeout(Duration.ofSeconds(3));
    }

    /** The result of a call, which comes within 10 s. */
    static <T> T get(CompletableFuture<T> call) throws Exception {
        return get(call, 10_000);
    }

    static <T> T get(CompletableFuture<T> call, long limitMillis) throws Exception {
        return call.get(limitMillis, TimeUnit.MILLISECONDS);
    }

    /** The call is refused with an error that says so. */
    static void says(String what, String words, Callable<CompletableFuture<?>> call) {
        Throwable error = refused(what, Throwable.class, () -> get(call.call()));
        StringBuilder chain = new StringBuilder();
        for (Throwable e = error; e != null; e = e.getCause()) {
            chain.append(e).append("; ");
        }
        holds(what + ": an error with the words: " + words, chain.toString().contains(words), chain);
    }

    static PutResponse put(Client client, String key, String value) throws Exception {
        return get(client.getKVClient().put(bytes(key), bytes(value)));
    }

    static PutResponse put(Client client, String key, String value, long lease) throws Exception {
        return get(client.getKVClient().put(bytes(key), bytes(value), PutOption.builder().withLeaseId(lease).build()));
    }

    /** The pair of a key, or null. */
    static KeyValue pair(Client client, String key) throws Exception {
        List<KeyValue> pairs = get(client.getKVClient().get(bytes(key))).getKvs();
        return pairs.isEmpty() ? null : pairs.get(0);
    }

    /** The value of a key, or null. */
    static String value(Client client, String key) throws Exception {
        KeyValue pair = pair(client, key);
        return pair == null ? null : text(pair.getValue());
    }

    static long revision(Client client, String prefix) throws Exception {
        return get(client.getKVClient().get(bytes(prefix + "/no-such-key"))).getHeader().getRevision();
    }

    /**
     * The revision that {@code second} returns is that of {@code first} and {@code by}. A lease of an earlier scenario may end
     * in between and move it, so that it has to hold for one of three tries.
     */
    static void rises(String what, long by, Callable<Long> first, Callable<Long> second) throws Exception {
        long before = 0;
        long after = 0;
        for (int tries = 0; tries < 3; tries++) {
            before = first.call();
            after = second.call();
            holds(what + ": the revision, at least " + (before + by), after >= before + by, after);
            if (after == before + by) {
                return;
            }
        }
        equal(what + ": the revision, in the last of three tries", before + by, after);
    }

    static List<String> keys(List<KeyValue> pairs) {
        return pairs.stream().map(pair -> text(pair.getKey())).toList();
    }

    static void pair(String what, KeyValue pair, String key, String value, long created, long modified, long version, long lease) {
        equal(what, List.of(key, value, created, modified, version, lease),
                List.of(text(pair.getKey()), text(pair.getValue()), pair.getCreateRevision(), pair.getModRevision(), pair.getVersion(), pair.getLease()));
    }

    static ByteSequence bytes(String text) {
        return ByteSequence.from(text, StandardCharsets.UTF_8);
    }

    static String text(ByteSequence bytes) {
        return bytes.toString(StandardCharsets.UTF_8);
    }
}
