package compat;

/** A scenario of one client: a file of compat-tests/scenarios, step by step. */
public interface Scenario {
    void run(Run run) throws Exception;

    /** The whole program ends within this time, whatever the server does. */
    default int limitSeconds() {
        return 58;
    }
}
