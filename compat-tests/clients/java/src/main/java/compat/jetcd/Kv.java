package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.DeleteResponse;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.kv.PutResponse;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.GetOption.SortOrder;
import io.etcd.jetcd.options.GetOption.SortTarget;
import io.etcd.jetcd.options.PutOption;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

public final class Kv implements Scenario {
    private Client client;
    private KV kv;
    private String prefix;
    private String key;
    private long first;
    private long last;

    @Override
    public void run(Run run) throws Exception {
        client = Etcd.connect(run);
        kv = client.getKVClient();
        prefix = run.prefix();
        key = prefix + "/key";
        String many = prefix + "/many/";
        run.step("put", () -> {
            byte[] all = new byte[256];
            for (int i = 0; i < all.length; i++) {
                all[i] = (byte) i;
            }
            AtomicInteger fresh = new AtomicInteger();
            Etcd.rises("put of a new key", 1, () -> Etcd.revision(client, prefix), () -> put(prefix + "/fresh" + fresh.incrementAndGet()));
            first = Etcd.get(kv.put(Etcd.bytes(key), ByteSequence.from(all))).getHeader().getRevision();
            KeyValue pair = Etcd.pair(client, key);
            equal("value", all, pair.getValue().getBytes());
            equal("key", key, Etcd.text(pair.getKey()));
            equal("create revision, mod revision, version, lease", List.of(first, first, 1L, 0L),
                    List.of(pair.getCreateRevision(), pair.getModRevision(), pair.getVersion(), pair.getLease()));
        });
        run.step("again", () -> {
            last = Etcd.put(client, key, "second").getHeader().getRevision();
            holds("mod revision greater than " + first, last > first, last);
            Etcd.rises("second put", 1, () -> put(prefix + "/twice"), () -> put(prefix + "/twice"));
            Etcd.pair("pair", Etcd.pair(client, key), key, "second", first, last, 2, 0);
        });
        run.step("prev-kv", () -> {
            PutOption withPrevious = PutOption.builder().withPrevKV().build();
            PutResponse put = Etcd.get(kv.put(Etcd.bytes(key), Etcd.bytes("third"), withPrevious));
            equal("a pair before", true, put.hasPrevKv());
            Etcd.pair("pair before the put", put.getPrevKv(), key, "second", first, last, 2, 0);
            long third = put.getHeader().getRevision();
            DeleteResponse delete = Etcd.get(kv.delete(Etcd.bytes(key), DeleteOption.builder().withPrevKV(true).build()));
            equal("pairs before the delete", 1, delete.getPrevKvs().size());
            Etcd.pair("pair before the delete", delete.getPrevKvs().get(0), key, "third", first, third, 3, 0);
            equal("a pair before a new key", false, Etcd.get(kv.put(Etcd.bytes(prefix + "/new"), Etcd.bytes(""), withPrevious)).hasPrevKv());
        });
        run.step("missing", () -> {
            GetResponse got = Etcd.get(kv.get(Etcd.bytes(prefix + "/missing")));
            equal("pairs", 0, got.getKvs().size());
            equal("count", 0L, got.getCount());
        });
        run.step("delete", () -> {
            Etcd.rises("delete", 1, () -> put(prefix + "/gone"), () -> Etcd.get(kv.delete(Etcd.bytes(prefix + "/gone"))).getHeader().getRevision());
            put(key);
            DeleteResponse delete = Etcd.get(kv.delete(Etcd.bytes(key)));
            equal("deleted", 1L, delete.getDeleted());
            equal("pair", null, Etcd.pair(client, key));
            long again = Etcd.put(client, key, "y").getHeader().getRevision();
            Etcd.pair("pair", Etcd.pair(client, key), key, "y", again, again, 1, 0);
        });
        run.step("delete-none", () -> {
            equal("deleted", 0L, deleteMissing().getDeleted());
            Etcd.rises("its header", 0, () -> Etcd.revision(client, prefix), () -> deleteMissing().getHeader().getRevision());
            Etcd.rises("afterwards", 0, () -> deleteMissing().getHeader().getRevision(), () -> Etcd.revision(client, prefix));
        });
        run.step("prefix", () -> {
            fill(many);
            Etcd.put(client, prefix + "/many", "before");
            Etcd.put(client, prefix + "/many0", "behind");
            GetResponse got = range(many, option(many));
            equal("keys", names(many, "a", "b", "c", "d", "e"), Etcd.keys(got.getKvs()));
            equal("count", 5L, got.getCount());
            equal("more", false, got.isMore());
            equal("value", "va", Etcd.text(got.getKvs().get(0).getValue()));
        });
        run.step("limit", () -> {
            GetResponse got = range(many, option(many).withLimit(2));
            equal("keys", names(many, "a", "b"), Etcd.keys(got.getKvs()));
            equal("more", true, got.isMore());
            equal("count", 5L, got.getCount());
        });
        run.step("sort", () -> {
            equal("by key descending", names(many, "e", "d", "c", "b", "a"), sorted(many, SortTarget.KEY, SortOrder.DESCEND));
            equal("by mod revision ascending", names(many, "c", "a", "e", "b", "d"), sorted(many, SortTarget.MOD, SortOrder.ASCEND));
            equal("by mod revision descending", names(many, "d", "b", "e", "a", "c"), sorted(many, SortTarget.MOD, SortOrder.DESCEND));
        });
        run.step("keys-only", () -> {
            List<KeyValue> full = range(many, option(many)).getKvs();
            List<KeyValue> bare = range(many, option(many).withKeysOnly(true)).getKvs();
            equal("keys", Etcd.keys(full), Etcd.keys(bare));
            equal("values", List.of("", "", "", "", ""), bare.stream().map(pair -> Etcd.text(pair.getValue())).toList());
            equal("mod revisions", full.stream().map(KeyValue::getModRevision).toList(), bare.stream().map(KeyValue::getModRevision).toList());
            equal("create revisions", full.stream().map(KeyValue::getCreateRevision).toList(), bare.stream().map(KeyValue::getCreateRevision).toList());
        });
        run.step("count-only", () -> {
            GetResponse got = range(many, option(many).withCountOnly(true));
            equal("pairs", 0, got.getKvs().size());
            equal("count", 5L, got.getCount());
        });
        run.step("from-key", () -> equal("keys", names(many, "c", "d", "e"),
                Etcd.keys(range(many + "c", GetOption.builder().withRange(Etcd.bytes(prefix + "/many0"))).getKvs())));
        run.step("past", () -> {
            long old = Etcd.put(client, key, "old").getHeader().getRevision();
            long young = Etcd.put(client, key, "young").getHeader().getRevision();
            GetResponse got = range(key, GetOption.builder().withRevision(old));
            equal("value", "old", Etcd.text(got.getKvs().get(0).getValue()));
            equal("mod revision", old, got.getKvs().get(0).getModRevision());
            holds("header's revision, at least " + young, got.getHeader().getRevision() >= young, got.getHeader().getRevision());
        });
        run.step("future", () -> {
            long future = Etcd.revision(client, prefix) + 1_000_000;
            Etcd.says("get", "mvcc: required revision is a future revision", () -> kv.get(Etcd.bytes(key), GetOption.builder().withRevision(future).build()));
        });
        run.step("serializable", () -> equal("value", "young", Etcd.text(range(key, GetOption.builder().withSerializable(true)).getKvs().get(0).getValue())));
        run.step("delete-prefix", () -> {
            Etcd.rises("delete of five keys", 1, () -> fill(many), () -> {
                DeleteResponse delete = Etcd.get(kv.delete(Etcd.bytes(many), DeleteOption.builder().isPrefix(true).build()));
                equal("deleted", 5L, delete.getDeleted());
                return delete.getHeader().getRevision();
            });
            equal("keys", List.of(), Etcd.keys(range(many, option(many)).getKvs()));
            equal("the neighbour", "behind", Etcd.value(client, prefix + "/many0"));
        });
        run.lacks("ignore-value", "no such option of put");
        run.step("empty-key", () -> Etcd.says("put", "key is not provided", () -> kv.put(ByteSequence.EMPTY, Etcd.bytes("x"))));
        run.step("too-large", () -> {
            Throwable error = Run.refused("put of 2,000,000 bytes", Exception.class, () -> Etcd.get(kv.put(Etcd.bytes(prefix + "/large"), ByteSequence.from(new byte[2_000_000]))));
            // The server's word, or that of the gRPC client in etcd's own proxy.
            holds("an error that speaks of the size", error.toString().matches("(?s).*(request is too large|message larger than max).*"), error);
            equal("the refused key", null, Etcd.pair(client, prefix + "/large"));
            byte[] large = new byte[1_000_000];
            for (int i = 0; i < large.length; i++) {
                large[i] = (byte) (i % 251);
            }
            Etcd.get(kv.put(Etcd.bytes(prefix + "/large"), ByteSequence.from(large)));
            equal("value", large, Etcd.pair(client, prefix + "/large").getValue().getBytes());
        });
    }

    private long put(String key) throws Exception {
        return Etcd.put(client, key, "x").getHeader().getRevision();
    }

    private DeleteResponse deleteMissing() throws Exception {
        return Etcd.get(kv.delete(Etcd.bytes(prefix + "/missing")));
    }

    /** Neither in the order of the keys nor the reverse: three orders to tell apart. */
    private long fill(String many) throws Exception {
        long revision = 0;
        for (String name : List.of("c", "a", "e", "b", "d")) {
            revision = Etcd.put(client, many + name, "v" + name).getHeader().getRevision();
        }
        return revision;
    }

    private GetResponse range(String from, GetOption.Builder option) throws Exception {
        return Etcd.get(kv.get(Etcd.bytes(from), option.build()));
    }

    private static GetOption.Builder option(String prefix) {
        return GetOption.builder().withPrefix(Etcd.bytes(prefix));
    }

    private List<String> sorted(String many, SortTarget by, SortOrder order) throws Exception {
        return Etcd.keys(range(many, option(many).withSortField(by).withSortOrder(order)).getKvs());
    }

    private static List<String> names(String many, String... names) {
        return java.util.Arrays.stream(names).map(name -> many + name).toList();
    }
}
