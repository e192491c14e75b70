package dubbo;

import java.util.List;
import java.util.stream.Collectors;
import org.apache.dubbo.common.URL;
import org.apache.dubbo.common.extension.Activate;
import org.apache.dubbo.registry.AddressListener;
import org.apache.dubbo.rpc.cluster.Directory;

/** Says every list of providers that Dubbo takes from the registry, before Dubbo acts on it. */
@Activate
public final class Lists implements AddressListener {
    @Override
    public List<URL> notify(List<URL> addresses, URL consumer, Directory directory) {
        // An interface's configurators and routers are told in calls of their own, without providers; that there is none is told by
        // one address of the protocol "empty".
        if (!addresses.isEmpty()) {
            String kind = directory.isServiceDiscovery() ? "application" : "interface";
            String ports = addresses.stream()
                    .filter(address -> !address.getProtocol().equals("empty"))
                    .map(address -> String.valueOf(address.getPort()))
                    .sorted()
                    .collect(Collectors.joining(","));
            // Two references subscribe to the same interface.
            Main.say("list " + kind + "-" + Integer.toHexString(System.identityHashCode(directory)) + " " + ports);
        }
        return addresses;
    }
}
