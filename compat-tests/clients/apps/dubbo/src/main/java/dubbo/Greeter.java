package dubbo;

/** The service. */
public interface Greeter {
    /** The name of the provider that was called. */
    String name();
}
