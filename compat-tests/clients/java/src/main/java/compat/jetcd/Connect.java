package compat.jetcd;

import static compat.Run.equal;
import static compat.Run.holds;
import static compat.Run.refused;

import compat.Run;
import compat.Scenario;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Response;
import io.etcd.jetcd.cluster.MemberListResponse;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.maintenance.StatusResponse;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.concurrent.TimeUnit;

public final class Connect implements Scenario {
    private long cluster;

    @Override
    public void run(Run run) throws Exception {
        Client client = Etcd.connect(run);
        run.step("status", () -> {
            StatusResponse status = Etcd.get(client.getMaintenanceClient().statusMember("http://" + run.address().split(",")[0]));
            holds("version of three numbers", status.getVersion().matches("\\d+\\.\\d+\\.\\d+.*"), status.getVersion());
            holds("leader", status.getLeader() != 0, status.getLeader());
            Response.Header header = status.getHeader();
            holds("cluster id, member id, revision, term", header.getClusterId() != 0 && header.getMemberId() != 0 && header.getRevision() > 0 && header.getRaftTerm() != 0,
                    header.getClusterId() + ", " + header.getMemberId() + ", " + header.getRevision() + ", " + header.getRaftTerm());
            cluster = header.getClusterId();
        });
        run.step("members", () -> {
            MemberListResponse list = Etcd.get(client.getClusterClient().listMember());
            holds("a member with an id and a client URL", list.getMembers().stream().anyMatch(member -> member.getId() != 0 && !member.getClientURIs().isEmpty()), list);
            equal("cluster id", cluster, list.getHeader().getClusterId());
        });
        run.step("header", () -> {
            GetResponse got = missing(run, client);
            equal("pairs", 0, got.getKvs().size());
            equal("cluster id", cluster, got.getHeader().getClusterId());
            equal("cluster id again", cluster, missing(run, client).getHeader().getClusterId());
            holds("revision", got.getHeader().getRevision() > 0, got.getHeader().getRevision());
            Etcd.rises("two reads", 0, () -> missing(run, client).getHeader().getRevision(), () -> missing(run, client).getHeader().getRevision());
        });
        run.step("unreachable", () -> {
            int port;
            try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
                port = free.getLocalPort();
            }
            // By default jetcd waits until the server is there.
            Client lost = run.own(Etcd.builder("127.0.0.1:" + port).waitForReady(false).retryMaxAttempts(1).build());
            StatusRuntimeException error = refused("get", StatusRuntimeException.class, () -> lost.getKVClient().get(Etcd.bytes(run.prefix())).get(3, TimeUnit.SECONDS));
            equal("code", Status.Code.UNAVAILABLE, error.getStatus().getCode());
        });
    }

    private static GetResponse missing(Run run, Client client) throws Exception {
        return Etcd.get(client.getKVClient().get(Etcd.bytes(run.prefix() + "/missing")));
    }
}
