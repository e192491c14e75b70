package compat.jetcd;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.watch.WatchEvent;
import java.util.ArrayList;
import java.util.List;

public final class Watch implements Scenario {
    private Client client;
    private KV kv;

    @Override
    public void run(Run run) throws Exception {
        client = Etcd.connect(run);
        kv = client.getKVClient();
        String prefix = run.prefix();
        String key = prefix + "/key";
        Events single = Events.of(run, client, key, Events.key());
        run.step("put", () -> {
            long first = put(key, "1");
            Etcd.pair("pair", single.put(key, "1", first).getKeyValue(), key, "1", first, first, 1, 0);
            long second = put(key, "2");
            Etcd.pair("pair", single.put(key, "2", second).getKeyValue(), key, "2", first, second, 2, 0);
        });
        run.step("delete", () -> {
            single.delete(key, delete(key));
            single.silent(300);
        });
        run.step("prefix", () -> {
            Events watch = Events.of(run, client, prefix + "/p/", Events.prefix());
            long b = put(prefix + "/p/b", "1");
            put(prefix + "/p", "beside");
            long a = put(prefix + "/p/a", "2");
            put(prefix + "/p0", "beside");
            long c = put(prefix + "/p/c", "3");
            watch.put(prefix + "/p/b", "1", b);
            watch.put(prefix + "/p/a", "2", a);
            watch.put(prefix + "/p/c", "3", c);
            watch.silent(1000);
        });
        run.step("prev-kv", () -> {
            String old = prefix + "/old";
            Events watch = Events.of(run, client, old, Events.key().withPrevKV(true));
            long first = put(old, "1");
            // The library makes an empty pair where there is none.
            equal("version of the pair before the first", 0L, watch.put(old, "1", first).getPrevKV().getVersion());
            long second = put(old, "2");
            Etcd.pair("pair before the update", watch.put(old, "2", second).getPrevKV(), old, "1", first, first, 1, 0);
            Etcd.pair("pair before the delete", watch.delete(old, delete(old)).getPrevKV(), old, "2", first, second, 2, 0);
        });
        run.step("filters", () -> {
            String some = prefix + "/some";
            Events deletes = Events.of(run, client, some, Events.key().withNoPut(true));
            Events puts = Events.of(run, client, some, Events.key().withNoDelete(true));
            long first = put(some, "1");
            long gone = delete(some);
            long again = put(some, "2");
            deletes.delete(some, gone);
            deletes.silent(500);
            puts.put(some, "1", first);
            puts.put(some, "2", again);
            puts.silent(100);
        });
        run.step("history", () -> {
            String past = prefix + "/past";
            long first = put(past, "1");
            long second = put(past, "2");
            long gone = delete(past);
            Events watch = Events.of(run, client, past, Events.key().withRevision(first));
            watch.put(past, "1", first);
            watch.put(past, "2", second);
            watch.delete(past, gone);
            watch.put(past, "3", put(past, "3"));
            watch.silent(300);
        });
        run.step("txn", () -> {
            put(prefix + "/t/gone", "x");
            Events watch = Events.of(run, client, prefix + "/t/", Events.prefix());
            long revision = Etcd.get(kv.txn().Then(putOp(prefix + "/t/z", "1"), Op.delete(Etcd.bytes(prefix + "/t/gone"), DeleteOption.DEFAULT), putOp(prefix + "/t/a", "2")).commit())
                    .getHeader().getRevision();
            watch.put(prefix + "/t/z", "1", revision);
            watch.delete(prefix + "/t/gone", revision);
            watch.put(prefix + "/t/a", "2", revision);
            watch.silent(300);
        });
        List<Events> three = new ArrayList<>();
        run.step("many", () -> {
            for (int i = 0; i < 3; i++) {
                three.add(Events.of(run, client, prefix + "/many/" + i, Events.key()));
            }
            for (int i = 2; i >= 0; i--) {
                three.get(i).put(prefix + "/many/" + i, "x", put(prefix + "/many/" + i, "x"));
            }
            for (Events one : three) {
                one.silent(200);
            }
        });
        run.step("cancel", () -> {
            three.get(1).cancel();
            Run.pause(300);
            put(prefix + "/many/1", "y");
            three.get(1).silent(500);
            for (int i : new int[] {0, 2}) {
                three.get(i).put(prefix + "/many/" + i, "y", put(prefix + "/many/" + i, "y"));
            }
        });
        run.step("burst", () -> {
            Client other = Etcd.connect(run);
            Events watch = Events.of(run, client, prefix + "/burst/", Events.prefix());
            List<Long> revisions = new ArrayList<>();
            for (int i = 0; i < 500; i++) {
                revisions.add(Etcd.put(other, prefix + "/burst/" + (i % 50), "" + i).getHeader().getRevision());
            }
            for (int i = 0; i < 500; i++) {
                WatchEvent event = watch.put(prefix + "/burst/" + (i % 50), "" + i, revisions.get(i));
                equal("version", (long) (i / 50 + 1), event.getKeyValue().getVersion());
            }
            watch.silent(300);
        });
    }

    private long put(String key, String value) throws Exception {
        return Etcd.put(client, key, value).getHeader().getRevision();
    }

    private long delete(String key) throws Exception {
        return Etcd.get(kv.delete(Etcd.bytes(key))).getHeader().getRevision();
    }

    private static Op putOp(String key, String value) {
        return Op.put(Etcd.bytes(key), Etcd.bytes(value), PutOption.DEFAULT);
    }
}
