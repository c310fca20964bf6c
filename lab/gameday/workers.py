"""Threads that act on the fleet while a fault is in effect."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Workers:
    """Runs functions in threads from now until `stop`.

    Args:
        functions: each receives the event that `stop` sets. The threads run before the constructor returns: a function
            must not read the attribute that holds this object.
    """

    def __init__(self, *functions: Callable[[threading.Event], None]) -> None:
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=each, args=(self._stopped,), daemon=True) for each in functions]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Set the event, and wait for the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
