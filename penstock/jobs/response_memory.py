"""Bounds the memory of requests and responses of jobs, whatever their number: large responses arrive a few at a time.

A response above FREE_BYTES needs a permit for the rest; without one, its engine waits (back-pressure). What has arrived
and is not in the store yet counts as held, and while much is held, no further request starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.jobs.batches.item_results import MAX_RESULT_BYTES

FREE_BYTES: Final = 256 * 1024
"""Size (bytes) of a response up to which it needs no permit."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""Memory (bytes) of what is held and of responses with a permit. JSON lines of results are built beside it."""

FULL_BYTES: Final = 128 * 1024 * 1024
"""Held memory (bytes) from which no further request starts."""


class ResponseMemory:
    """The memory of one agent's jobs."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_response_bytes: int = MAX_RESULT_BYTES) -> None:
        """Limit the memory to `max_bytes`; a response has at most `max_response_bytes`."""
        self._max_bytes = max_bytes
        self._max_response_bytes = max_response_bytes
        self._permits = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request may start."""
        return self.held_bytes >= FULL_BYTES

    def acquire(self, granted: Callable[[], None]) -> None:
        """Ask for a permit; `granted` is called once there is one, which may be at once."""
        self._waiting.append(granted)
        self._grant()

    def withdraw(self, granted: Callable[[], None]) -> None:
        """Give up a permit, or the wait for one."""
        if granted in self._waiting:
            self._waiting.remove(granted)
        else:
            self._permits -= 1
            self._grant()

    def hold(self, size_bytes: int) -> None:
        """Count bytes that are in memory until they are in the store."""
        self.held_bytes += size_bytes

    def free(self, size_bytes: int) -> None:
        """Count bytes no longer."""
        self.held_bytes -= size_bytes
        self._grant()

    def _grant(self) -> None:
        # With nothing held and no permit, one is granted: what is held is written without permits.
        while self._waiting and (
            self.held_bytes + (self._permits + 1) * self._max_response_bytes <= self._max_bytes
            or not (self._permits or self.held_bytes)
        ):
            self._permits += 1
            self._waiting.popleft()()
