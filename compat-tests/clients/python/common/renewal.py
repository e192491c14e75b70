"""The loop that an application of an etcd library has to keep its lease."""

import threading

from bench import Failed


class Renewal(threading.Thread):
    """`refresh` renews the lease and gives the seconds that are left of it. An error of the kinds in `through` is one
    that the application expects for a while: it goes on. Any other, and a lease that is gone, ends the loop and is
    kept."""

    def __init__(self, refresh, pause, through=()):
        super().__init__(daemon=True)
        self.refresh, self.pause, self.through = refresh, pause, through
        self.over, self.ended = threading.Event(), None
        self.start()

    def run(self):
        while not self.over.wait(self.pause):
            try:
                left = self.refresh()
                if left <= 0:
                    raise Failed(f"a renewal of the lease was answered with the TTL {left}")
            except self.through:
                pass
            except Exception as error:  # noqa: BLE001: shown by `good`
                self.ended = error
                return

    def good(self):
        """No renewal has failed so far."""
        if self.ended:
            raise self.ended

    def stop(self):
        self.over.set()
        self.join()
        self.good()
