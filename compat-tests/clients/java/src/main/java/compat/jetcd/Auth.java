package compat.jetcd;

import static compat.Run.equal;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.auth.Permission.Type;
import io.etcd.jetcd.options.OptionsUtil;
import java.util.List;

public final class Auth implements Scenario {
    private Client root;

    @Override
    public void run(Run run) throws Exception {
        Client client = Etcd.connect(run);
        io.etcd.jetcd.Auth auth = client.getAuthClient();
        String key = run.prefix() + "/key";
        run.step("off", () -> {
            Etcd.put(client, key, "before");
            Client early = as(run, "root", "rootpw");
            Etcd.says("a call with user and password", "authentication is not enabled", () -> early.getKVClient().get(Etcd.bytes(key)));
        });
        run.step("setup", () -> {
            Etcd.get(auth.userAdd(Etcd.bytes("root"), Etcd.bytes("rootpw")));
            Etcd.get(auth.roleAdd(Etcd.bytes("root")));
            Etcd.get(auth.userGrantRole(Etcd.bytes("root"), Etcd.bytes("root")));
            Etcd.get(auth.userAdd(Etcd.bytes("reader"), Etcd.bytes("readerpw")));
            Etcd.get(auth.roleAdd(Etcd.bytes("readers")));
            Etcd.get(auth.roleGrantPermission(Etcd.bytes("readers"), Etcd.bytes(run.prefix()), OptionsUtil.prefixEndOf(Etcd.bytes(run.prefix())), Type.READ));
            Etcd.get(auth.userGrantRole(Etcd.bytes("reader"), Etcd.bytes("readers")));
            equal("users", List.of("reader", "root"), Etcd.get(auth.userList()).getUsers().stream().sorted().toList());
            equal("roles of reader", List.of("readers"), Etcd.get(auth.userGet(Etcd.bytes("reader"))).getRoles());
            Etcd.get(auth.authEnable());
        });
        run.step("anonymous", () -> Etcd.says("put", "user name is empty", () -> client.getKVClient().put(Etcd.bytes(key), Etcd.bytes("x"))));
        run.step("wrong", () -> {
            Client wrong = as(run, "reader", "guessed");
            Etcd.says("get", "authentication failed, invalid user ID or password", () -> wrong.getKVClient().get(Etcd.bytes(key)));
        });
        run.step("reader", () -> {
            Client reader = as(run, "reader", "readerpw");
            equal("value", "before", Etcd.value(reader, key));
            Etcd.says("put", "permission denied", () -> reader.getKVClient().put(Etcd.bytes(key), Etcd.bytes("x")));
        });
        run.step("root", () -> {
            root = as(run, "root", "rootpw");
            Etcd.put(root, key, "by root");
            equal("value", "by root", Etcd.value(root, key));
        });
        run.step("cleanup", () -> {
            Etcd.get(root.getAuthClient().authDisable());
            for (String user : List.of("reader", "root")) {
                Etcd.get(auth.userDelete(Etcd.bytes(user)));
            }
            for (String role : List.of("readers", "root")) {
                Etcd.get(auth.roleDelete(Etcd.bytes(role)));
            }
            equal("users", List.of(), Etcd.get(auth.userList()).getUsers());
            equal("roles", List.of(), Etcd.get(auth.roleList()).getRoles());
        });
    }

    private static Client as(Run run, String user, String password) {
        return run.own(Etcd.builder(run.address()).user(Etcd.bytes(user)).password(Etcd.bytes(password)).build());
    }
}
