package compat;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;

/** What a scenario knows of its target, and how it reports: a line on standard output for each step. */
public final class Run {
    private final String address;
    private final String prefix;
    private final PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, StandardCharsets.UTF_8);
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final Deque<AutoCloseable> owned = new ArrayDeque<>();
    private volatile String current = "start";

    private Run(String address, String prefix) {
        this.address = address;
        this.prefix = prefix;
    }

    static void execute(Scenario scenario, String address, String prefix) {
        Run run = new Run(address, prefix);
        // What a library prints must not be taken for a report.
        System.setOut(System.err);
        daemon("limit", () -> {
            pause(scenario.limitSeconds() * 1000L);
            run.fail("not through after " + scenario.limitSeconds() + " s; now at " + stack());
        });
        try {
            scenario.run(run);
        } catch (Throwable e) {
            run.fail(describe(e));
        }
        run.current = "end";
        run.closeAll();
        run.line("done");
        Runtime.getRuntime().halt(0);
    }

    /** {@code host:port}, or several with commas. */
    public String address() {
        return address;
    }

    /** A path or a key prefix that is fresh for this run. */
    public String prefix() {
        return prefix;
    }

    /** The same server over a link that the bench can cut. */
    public String link() {
        return Objects.requireNonNull(System.getenv("COMPAT_LINK"), "COMPAT_LINK is not set");
    }

    /** Runs one step of the scenario's file; what it throws is its failure and the end of the program. */
    public void step(String name, Body body) {
        current = name;
        try {
            body.run();
        } catch (Throwable e) {
            fail(describe(e));
        }
        line("ok " + name);
    }

    /** The library has no such call. */
    public void lacks(String step, String reason) {
        line("lacks " + step + " " + reason);
    }

    public void note(String text) {
        line("note " + text);
    }

    /** Asks the bench for a fault, and returns when it is done. */
    public void fault(String verb) throws IOException {
        line("do " + verb);
        equal("the bench's answer to " + verb, "done", in.readLine());
    }

    /** Closes the thing when the program ends, the last owned first. */
    public <T extends AutoCloseable> T own(T thing) {
        synchronized (owned) {
            owned.push(thing);
        }
        return thing;
    }

    public static void equal(String what, Object expected, Object seen) {
        if (!Objects.deepEquals(expected, seen)) {
            throw new AssertionError(what + ": expected " + show(expected) + ", seen " + show(seen));
        }
    }

    public static void holds(String what, boolean holds, Object seen) {
        if (!holds) {
            throw new AssertionError(what + ": seen " + show(seen));
        }
    }

    /** Runs the call, which has to throw {@code kind}; returns what it threw. */
    public static <E extends Throwable> E refused(String what, Class<E> kind, Callable<?> call) {
        Object value;
        try {
            value = call.call();
        } catch (Throwable thrown) {
            Throwable e = cause(thrown);
            if (kind.isInstance(e)) {
                return kind.cast(e);
            }
            throw new AssertionError(what + ": expected " + kind.getSimpleName() + ", seen " + describe(e));
        }
        throw new AssertionError(what + ": expected " + kind.getSimpleName() + ", seen no error but " + show(value));
    }

    /** Asks every 20 ms until the answer is as expected; returns how long that took in milliseconds. */
    public static long eventually(String what, long limitMillis, Object expected, Callable<?> ask) throws Exception {
        long start = System.nanoTime();
        while (true) {
            Object seen = ask.call();
            long took = (System.nanoTime() - start) / 1_000_000;
            if (Objects.deepEquals(expected, seen)) {
                return took;
            }
            if (took > limitMillis) {
                throw new AssertionError(what + " within " + limitMillis + " ms: expected " + show(expected) + ", seen " + show(seen));
            }
            pause(20);
        }
    }

    public static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException("interrupted", e);
        }
    }

    public static Thread daemon(String name, Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Throwable e) {
                System.err.println(name + ": " + e);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    /** The error below the wrappers of futures. */
    public static Throwable cause(Throwable e) {
        while ((e instanceof ExecutionException || e instanceof CompletionException) && e.getCause() != null) {
            e = e.getCause();
        }
        return e;
    }

    /** A step's body. */
    @FunctionalInterface
    public interface Body {
        void run() throws Exception;
    }

    private synchronized void line(String text) {
        out.println(text.replaceAll("\\s*[\\r\\n]+\\s*", " | "));
    }

    private void fail(String reason) {
        line("fail " + current + " " + reason);
        Runtime.getRuntime().halt(1);
    }

    /** Politely and for 3 s at most: a server that hangs at the end has not failed a step. */
    private void closeAll() {
        Thread closing = daemon("close", () -> {
            while (true) {
                AutoCloseable thing;
                synchronized (owned) {
                    thing = owned.poll();
                }
                if (thing == null) {
                    return;
                }
                try {
                    thing.close();
                } catch (Exception e) {
                    System.err.println("close: " + e);
                }
            }
        });
        try {
            closing.join(3000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static String describe(Throwable thrown) {
        Throwable e = cause(thrown);
        if (e instanceof AssertionError) {
            return e.getMessage();
        }
        StackTraceElement[] trace = e.getStackTrace();
        String where = Arrays.stream(trace).filter(f -> f.getClassName().startsWith("compat.") && !f.getClassName().equals(Run.class.getName()))
                .findFirst().map(f -> " at " + f.getFileName() + ":" + f.getLineNumber()).orElse("");
        return e + where;
    }

    private static String stack() {
        return Thread.getAllStackTraces().entrySet().stream().filter(e -> e.getKey().getName().equals("main"))
                .flatMap(e -> Arrays.stream(e.getValue())).filter(f -> f.getClassName().startsWith("compat.") && !f.getClassName().equals(Run.class.getName()))
                .findFirst().map(f -> f.getFileName() + ":" + f.getLineNumber()).orElse("?");
    }

    private static String show(Object value) {
        if (value instanceof byte[] bytes) {
            return bytes.length + " bytes " + (bytes.length <= 40 ? Arrays.toString(bytes) : "(hash " + Arrays.hashCode(bytes) + ")");
        }
        return value instanceof Object[] many ? Arrays.deepToString(many) : String.valueOf(value);
    }
}
