"""Threads that act on the fleet while a fault is in effect."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Workers:
    """Runs functions in threads from now until `stop`; the functions read `stopped`."""

    def __init__(self, *functions: Callable[[], None]) -> None:
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=function, daemon=True) for function in functions]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Set `stopped`, and wait for the threads."""
        self.stopped.set()
        for thread in self._threads:
            thread.join()
