package compat;

import java.util.Arrays;
import java.util.stream.Collectors;

/** The bench's Java program: one process runs one scenario of one client against one address. */
public final class Main {
    private Main() {}

    /** {@code CLIENT SCENARIO ADDRESS PREFIX}; the class is found by its name: {@code watch-data} of curator is compat.curator.WatchData. */
    public static void main(String[] args) {
        if (args.length != 4) {
            System.err.println("usage: compat.Main CLIENT SCENARIO ADDRESS PREFIX");
            System.exit(2);
        }
        Scenario scenario;
        try {
            scenario = (Scenario) Class.forName(className(args[0], args[1])).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException e) {
            System.err.println("no scenario " + args[1] + " of client " + args[0] + ": " + e);
            System.exit(2);
            return;
        }
        Run.execute(scenario, args[2], args[3]);
    }

    private static String className(String client, String scenario) {
        return Arrays.stream(scenario.split("-"))
                .map(word -> word.substring(0, 1).toUpperCase() + word.substring(1))
                .collect(Collectors.joining("", "compat." + client + ".", ""));
    }
}
