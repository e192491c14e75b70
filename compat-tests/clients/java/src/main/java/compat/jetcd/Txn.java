package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.TxnResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.PutOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

public final class Txn implements Scenario {
    private Client client;
    private KV kv;
    private String prefix;
    private String key;

    @Override
    public void run(Run run) throws Exception {
        client = Etcd.connect(run);
        kv = client.getKVClient();
        prefix = run.prefix();
        key = prefix + "/key";
        run.step("then", () -> {
            TxnResponse done = createOnce();
            equal("succeeded", true, done.isSucceeded());
            equal("answers to puts", 1, done.getPutResponses().size());
            long revision = done.getHeader().getRevision();
            Etcd.pair("pair", Etcd.pair(client, key), key, "then", revision, revision, 1, 0);
        });
        run.step("otherwise", () -> {
            TxnResponse done = createOnce();
            equal("succeeded", false, done.isSucceeded());
            equal("answers to puts", 0, done.getPutResponses().size());
            equal("value read by the else branch", "then", Etcd.text(done.getGetResponses().get(0).getKvs().get(0).getValue()));
        });
        run.step("compares", () -> {
            Etcd.put(client, key, "m");
            KeyValue pair = Etcd.pair(client, key);
            compares("value", CmpTarget.value(Etcd.bytes("l")), CmpTarget.value(Etcd.bytes("m")), CmpTarget.value(Etcd.bytes("n")));
            long version = pair.getVersion();
            compares("version", CmpTarget.version(version - 1), CmpTarget.version(version), CmpTarget.version(version + 1));
            long created = pair.getCreateRevision();
            compares("create revision", CmpTarget.createRevision(created - 1), CmpTarget.createRevision(created), CmpTarget.createRevision(created + 1));
            long modified = pair.getModRevision();
            compares("mod revision", CmpTarget.modRevision(modified - 1), CmpTarget.modRevision(modified), CmpTarget.modRevision(modified + 1));
        });
        run.step("several", () -> {
            Etcd.put(client, prefix + "/gone", "x");
            TxnResponse done = several();
            long revision = done.getHeader().getRevision();
            equal("answers to puts", 3, done.getPutResponses().size());
            equal("answers to deletes", 1, done.getDeleteResponses().size());
            equal("deleted", 1L, done.getDeleteResponses().get(0).getDeleted());
            for (int i = 1; i <= 3; i++) {
                Etcd.pair("pair", Etcd.pair(client, prefix + "/s" + i), prefix + "/s" + i, "" + i, revision, revision, 1, 0);
            }
            equal("the deleted key", null, Etcd.pair(client, prefix + "/gone"));
            Etcd.rises("transaction", 1, () -> Etcd.put(client, prefix + "/gone", "x").getHeader().getRevision(), () -> several().getHeader().getRevision());
            Etcd.rises("afterwards", 0, () -> several().getHeader().getRevision(), () -> Etcd.revision(client, prefix));
        });
        run.step("reads", () -> {
            TxnResponse done = Etcd.get(kv.txn().Then(put("/read", "new"), read("/read")).commit());
            equal("value", "new", Etcd.text(done.getGetResponses().get(0).getKvs().get(0).getValue()));
        });
        run.step("read-only", () -> {
            Etcd.rises("its header", 0, () -> Etcd.revision(client, prefix), () -> reads().getHeader().getRevision());
            Etcd.rises("afterwards", 0, () -> reads().getHeader().getRevision(), () -> Etcd.revision(client, prefix));
        });
        run.step("all-or-nothing", () -> {
            Etcd.rises("transaction", 0, () -> Etcd.revision(client, prefix), () -> {
                TxnResponse done = Etcd.get(kv.txn().If(missing("/never"), missing("/s1")).Then(put("/never", "x")).commit());
                equal("succeeded", false, done.isSucceeded());
                return Etcd.revision(client, prefix);
            });
            equal("the key", null, Etcd.pair(client, prefix + "/never"));
        });
        run.step("duplicate", () -> {
            Etcd.rises("transaction", 0, () -> Etcd.revision(client, prefix), () -> {
                Etcd.says("transaction", "duplicate key given in txn request", () -> kv.txn().Then(put("/twice", "1"), put("/twice", "2")).commit());
                return Etcd.revision(client, prefix);
            });
            equal("the key", null, Etcd.pair(client, prefix + "/twice"));
        });
        run.step("nested", () -> {
            Op inner = Op.txn(new Cmp[] {missing("/s1")}, new Op[] {put("/inner-then", "x")}, new Op[] {put("/inner-else", "x")});
            TxnResponse done = Etcd.get(kv.txn().If(missing("/outer")).Then(put("/outer", "x"), inner).commit());
            equal("succeeded", true, done.isSucceeded());
            equal("answers to transactions", 1, done.getTxnResponses().size());
            equal("the inner one succeeded", false, done.getTxnResponses().get(0).isSucceeded());
            equal("then of the inner one", null, Etcd.pair(client, prefix + "/inner-then"));
            equal("mod revision of both", Etcd.pair(client, prefix + "/outer").getModRevision(), Etcd.pair(client, prefix + "/inner-else").getModRevision());
        });
        run.step("cas", () -> {
            String counter = prefix + "/counter";
            Etcd.put(client, counter, "0");
            List<CompletableFuture<Void>> all = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                Client one = Etcd.connect(run);
                CompletableFuture<Void> through = new CompletableFuture<>();
                all.add(through);
                Run.daemon("counter " + i, () -> {
                    try {
                        for (int round = 0; round < 10; round++) {
                            while (!raise(one, counter)) {
                                // Another was faster: read again.
                            }
                        }
                        through.complete(null);
                    } catch (Throwable e) {
                        through.completeExceptionally(e);
                    }
                });
            }
            for (CompletableFuture<Void> one : all) {
                Etcd.get(one, 30_000);
            }
            KeyValue pair = Etcd.pair(client, counter);
            equal("counter", "40", Etcd.text(pair.getValue()));
            equal("version", 41L, pair.getVersion());
        });
    }

    private TxnResponse createOnce() throws Exception {
        return Etcd.get(kv.txn().If(missing("/key")).Then(put("/key", "then")).Else(read("/key")).commit());
    }

    /** Three puts and a delete. */
    private TxnResponse several() throws Exception {
        return Etcd.get(kv.txn().Then(put("/s1", "1"), put("/s2", "2"), Op.delete(Etcd.bytes(prefix + "/gone"), DeleteOption.DEFAULT), put("/s3", "3")).commit());
    }

    private TxnResponse reads() throws Exception {
        return Etcd.get(kv.txn().Then(read("/read"), read("/s1")).commit());
    }

    private Cmp missing(String name) {
        return new Cmp(Etcd.bytes(prefix + name), Cmp.Op.EQUAL, CmpTarget.version(0));
    }

    private Op put(String name, String value) {
        return Op.put(Etcd.bytes(prefix + name), Etcd.bytes(value), PutOption.DEFAULT);
    }

    private Op read(String name) {
        return Op.get(Etcd.bytes(prefix + name), GetOption.DEFAULT);
    }

    /** Every comparison with something below, the same, and something above. */
    private void compares(String what, CmpTarget<?> below, CmpTarget<?> same, CmpTarget<?> above) throws Exception {
        equal(what + " compared", "EQUAL ftf GREATER tff LESS fft NOT_EQUAL tft",
                "EQUAL " + row(Cmp.Op.EQUAL, below, same, above) + " GREATER " + row(Cmp.Op.GREATER, below, same, above)
                        + " LESS " + row(Cmp.Op.LESS, below, same, above) + " NOT_EQUAL " + row(Cmp.Op.NOT_EQUAL, below, same, above));
    }

    private String row(Cmp.Op op, CmpTarget<?>... targets) throws Exception {
        StringBuilder row = new StringBuilder();
        for (CmpTarget<?> target : targets) {
            row.append(Etcd.get(kv.txn().If(new Cmp(Etcd.bytes(key), op, target)).Then(read("/key")).commit()).isSucceeded() ? 't' : 'f');
        }
        return row.toString();
    }

    private static boolean raise(Client client, String counter) throws Exception {
        KeyValue pair = Etcd.pair(client, counter);
        holds("the counter is there", pair != null, "nothing");
        int value = Integer.parseInt(Etcd.text(pair.getValue()));
        return Etcd.get(client.getKVClient().txn()
                .If(new Cmp(Etcd.bytes(counter), Cmp.Op.EQUAL, CmpTarget.modRevision(pair.getModRevision())))
                .Then(Op.put(Etcd.bytes(counter), Etcd.bytes("" + (value + 1)), PutOption.DEFAULT)).commit()).isSucceeded();
    }
}
