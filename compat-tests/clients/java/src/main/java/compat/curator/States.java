package compat.curator;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.framework.state.ConnectionStateListener;

/** The connection states that Curator told after the first connection. */
final class States implements ConnectionStateListener {
    private final BlockingQueue<ConnectionState> told = new LinkedBlockingQueue<>();

    static States of(CuratorFramework client) {
        States states = new States();
        client.getConnectionStateListenable().addListener(states);
        return states;
    }

    @Override
    public void stateChanged(CuratorFramework client, ConnectionState state) {
        // The first connection is told by a thread of its own, which may be late.
        if (state != ConnectionState.CONNECTED) {
            told.add(state);
        }
    }

    /** The next state told, which comes in time, is this one. */
    void next(ConnectionState wanted, long millis) throws InterruptedException {
        compat.Run.equal("state within " + millis + " ms", wanted, told.poll(millis, TimeUnit.MILLISECONDS));
    }
}
