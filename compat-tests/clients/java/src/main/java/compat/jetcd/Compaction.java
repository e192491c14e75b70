package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.common.exception.CompactedException;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.options.GetOption;
import java.util.ArrayList;
import java.util.List;

public final class Compaction implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        Client client = Etcd.connect(run);
        KV kv = client.getKVClient();
        String key = run.prefix() + "/key";
        List<Long> revisions = new ArrayList<>();
        run.step("compact", () -> {
            for (int i = 1; i <= 10; i++) {
                revisions.add(Etcd.put(client, key, "" + i).getHeader().getRevision());
            }
            Etcd.get(kv.compact(revisions.get(7)));
        });
        run.step("range", () -> {
            Etcd.says("get at the second's revision", "mvcc: required revision has been compacted",
                    () -> kv.get(Etcd.bytes(key), GetOption.builder().withRevision(revisions.get(1)).build()));
            GetResponse ninth = Etcd.get(kv.get(Etcd.bytes(key), GetOption.builder().withRevision(revisions.get(8)).build()));
            equal("value", "9", Etcd.text(ninth.getKvs().get(0).getValue()));
        });
        run.step("again", () -> Etcd.says("compaction", "mvcc: required revision has been compacted", () -> kv.compact(revisions.get(7))));
        run.step("future", () -> Etcd.says("compaction", "mvcc: required revision is a future revision", () -> kv.compact(revisions.get(9) + 1_000_000)));
        run.step("watch", () -> {
            Throwable end = Events.start(run, client, key, Events.key().withRevision(revisions.get(1))).end(5000);
            holds("ended as compacted", end instanceof CompactedException, end);
            equal("compact revision", revisions.get(7), ((CompactedException) end).getCompactedRevision());
        });
        run.step("watch-later", () -> {
            Events watch = Events.of(run, client, key, Events.key().withRevision(revisions.get(8)));
            watch.put(key, "9", revisions.get(8));
            watch.put(key, "10", revisions.get(9));
            watch.silent(300);
        });
    }
}
