"""What a scenario says to the bench: steps, checks, faults, waits with a limit. Nothing about any client."""

import contextlib
import os
import queue
import sys
import threading
import time
import traceback

CLIENT, SCENARIO, ADDRESS, PREFIX = sys.argv[1:5]
LINK = os.environ.get("COMPAT_LINK")

_current = "start"
_said = threading.Lock()


class Failed(Exception):
    """A check does not hold."""


def begin():
    """Sets the limit of the whole program: it ends by itself, whatever the server does."""
    limit = threading.Timer(120 if SCENARIO == "restart" else 60, lambda: _fail("the program did not end in time"))
    limit.daemon = True
    limit.start()


def end():
    _say("done")
    # Threads of a library may still wait for a connection; nothing waits for them.
    os._exit(0)


@contextlib.contextmanager
def step(name):
    """What is checked inside is the step `name`; the first thing that does not hold ends the program."""
    global _current
    _current = name
    try:
        yield
    except Exception as error:  # noqa: BLE001: whatever a library raises is the result of the step
        traceback.print_exc()
        _fail(str(error) if isinstance(error, Failed) else describe(error))
    _say(f"ok {name}")


def lacks(name, reason):
    """This library has no such call."""
    _say(f"lacks {name} {reason}")


def note(text):
    _say(f"note {text}")


def ask(verb):
    """Has the bench do something to the server or the link, and waits until it is done."""
    _say(f"do {verb}")
    answer = sys.stdin.readline().strip()
    check(answer == "done", f"the bench could not {verb}: {answer}")


def check(truth, what):
    if not truth:
        raise Failed(f"not so: {what}")


def equal(what, seen, wanted):
    if seen != wanted:
        raise Failed(f"{what}: expected {brief(wanted)}, saw {brief(seen)}")


def refused(error, call, *args, **named):
    """The call raises exactly this kind of error; gives it."""
    try:
        got = call(*args, **named)
    except error as raised:
        return raised
    except Exception as raised:
        kinds = error if isinstance(error, tuple) else (error,)
        raise Failed(f"expected {' or '.join(kind.__name__ for kind in kinds)}, saw {describe(raised)}") from raised
    kinds = error if isinstance(error, tuple) else (error,)
    raise Failed(f"expected {' or '.join(kind.__name__ for kind in kinds)}, saw the result {brief(got)}")


def until(what, limit, probe):
    """Waits until `probe` gives something true; gives that."""
    last = time.monotonic() + limit
    while True:
        got = probe()
        if got:
            return got
        if time.monotonic() > last:
            raise Failed(f"not within {limit} s: {what}; last seen {brief(got)}")
        time.sleep(0.02)


def undisturbed(what, attempt):
    """`attempt` gives a number seen and the number expected. A lease of an earlier scenario may end meanwhile and move the
    revision, so that it has three tries; a server that counts wrongly never gets it right."""
    for _ in range(3):
        seen, wanted = attempt()
        if seen == wanted:
            return
    raise Failed(f"{what}: expected {wanted}, saw {seen}, three times")


class Seen:
    """What callbacks brought, in order."""

    def __init__(self):
        self._queue = queue.Queue()

    def __call__(self, item):
        self._queue.put(item)

    def next(self, what, limit=5):
        try:
            return self._queue.get(timeout=limit)
        except queue.Empty:
            raise Failed(f"not within {limit} s: {what}") from None

    def none(self, what, quiet=1):
        """Nothing comes for so long."""
        with contextlib.suppress(queue.Empty):
            raise Failed(f"{what}: expected nothing, saw {brief(self._queue.get(timeout=quiet))}")

    def waiting(self):
        """All that is there, without waiting."""
        items = []
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(self._queue.get_nowait())
        return items


def together(*calls):
    """Runs the calls at once, each in a thread, and raises what one of them raised."""
    errors = []

    def guarded(call):
        try:
            call()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def background(call):
    """Starts the call; gives a `Seen` that gets its result, or the exception."""
    seen = Seen()

    def run():
        try:
            seen(call())
        except Exception as error:  # noqa: BLE001
            seen(error)

    threading.Thread(target=run, daemon=True).start()
    return seen


def describe(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:600] if text else type(error).__name__


def brief(value):
    text = " ".join(repr(value).split())
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"


def _say(line):
    with _said:
        print(" ".join(line.split("\n")), flush=True)


def _fail(reason):
    _say(f"fail {_current} {reason}")
    sys.stderr.flush()
    os._exit(1)
