"""Updates of gauges that are made when the gauges are read, because those of a large fleet occupy the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.registry import Collector


class DeferredUpdates(Collector):
    """A collector without metrics, registered before the gauges that it updates. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, Callable[[], None]] = {}

    def put(self, name: str, update: Callable[[], None]) -> None:
        """Make `update` at the next read; it replaces an earlier update of this name that was not made yet.

        Args:
            update: reads only values that do not change.
        """
        with self._lock:
            self._pending[name] = update

    def replace(self, name: str, update: Callable[[], None]) -> None:
        """Drop all updates that were not made yet, and make `update` at the next read."""
        with self._lock:
            self._pending = {name: update}

    def describe(self) -> Iterable[Metric]:
        """Return nothing: there are no metrics."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Make the updates."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for update in pending.values():
            update()
        return ()
