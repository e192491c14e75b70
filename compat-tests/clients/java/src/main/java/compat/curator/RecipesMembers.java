package compat.curator;

import static compat.Run.equal;
import static compat.Run.eventually;

import compat.Run;
import compat.Scenario;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.zookeeper.CreateMode;

public final class RecipesMembers implements Scenario {
    @Override
    public void run(Run run) throws Exception {
        CuratorFramework other = Cf.connect(run);
        String root = Cf.root(run, other);
        run.step("group", () -> {
            Map<String, CuratorFramework> clients = new TreeMap<>();
            Map<String, GroupMember> members = new TreeMap<>();
            for (String name : List.of("a", "b", "c")) {
                clients.put(name, Cf.connect(run));
                members.put(name, run.own(new GroupMember(clients.get(name), root + "/group", name, Cf.bytes("data of " + name))));
                members.get(name).start();
            }
            sees("all three", members);
            members.remove("b").close();
            sees("without the one that left", members);
            members.remove("c");
            clients.get("c").close();
            sees("without the one whose session was closed", members);
        });
        run.lacks("names", "Curator's group shows data too");
        run.lacks("shares", "Curator divides no set");
        run.step("kept", () -> {
            String path = root + "/kept";
            CuratorFramework first = Cf.connect(run);
            CuratorFramework second = Cf.connect(run);
            PersistentNode keeper = run.own(new PersistentNode(first, CreateMode.EPHEMERAL, false, path, Cf.bytes("first")));
            keeper.start();
            equal("made", true, keeper.waitForInitialCreate(10, TimeUnit.SECONDS));
            equal("owner", Cf.session(first), owner(other, path));
            for (int i = 0; i < 2; i++) {
                long before = other.checkExists().forPath(path).getCzxid();
                keeper.setData(Cf.bytes("first " + i));
                eventually("value", 2000, "first " + i, () -> Cf.get(other, path));
                other.delete().forPath(path);
                eventually("it is made again", 2000, true, () -> {
                    var stat = other.checkExists().forPath(path);
                    return stat != null && stat.getCzxid() > before;
                });
                equal("owner", Cf.session(first), owner(other, path));
                equal("value", "first " + i, Cf.get(other, path));
            }
            PersistentNode heir = run.own(new PersistentNode(second, CreateMode.EPHEMERAL, false, path, Cf.bytes("heir")));
            heir.start();
            Run.pause(300);
            equal("owner", Cf.session(first), owner(other, path));
            first.close();
            eventually("owner", 2000, Cf.session(second), () -> owner(other, path));
            equal("value", "heir", Cf.get(other, path));
        });
        run.step("kept-ttl", () -> {
            String path = root + "/ttl";
            CuratorFramework keeping = Cf.connect(run);
            PersistentTtlNode node = new PersistentTtlNode(keeping, path, 1500, Cf.bytes("kept"));
            node.start();
            equal("made", true, node.waitForInitialCreate(10, TimeUnit.SECONDS));
            for (int i = 0; i < 10; i++) {
                Run.pause(500);
                equal("value", "kept", Cf.get(other, path));
            }
            equal("children", List.of(PersistentTtlNode.DEFAULT_CHILD_NODE_NAME), Cf.children(other, path));
            // The session ends; the node is nobody's, and goes by its time.
            keeping.close();
            Run.pause(300);
            equal("it is there", true, Cf.there(other, path));
            eventually("it is there", 8000, false, () -> Cf.there(other, path));
        });
    }

    private static long owner(CuratorFramework client, String path) throws Exception {
        var stat = client.checkExists().forPath(path);
        return stat == null ? 0 : stat.getEphemeralOwner();
    }

    private static void sees(String what, Map<String, GroupMember> members) throws Exception {
        Map<String, String> wanted = new TreeMap<>();
        members.keySet().forEach(name -> wanted.put(name, "data of " + name));
        for (GroupMember member : members.values()) {
            eventually(what, 2000, wanted, () -> {
                Map<String, String> seen = new TreeMap<>();
                member.getCurrentMembers().forEach((name, data) -> seen.put(name, new String(data)));
                return seen;
            });
        }
    }
}
