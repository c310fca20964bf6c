"""Whether a job store responds at all. What needs a silent store fails at once, without its own time limit."""

from __future__ import annotations

from math import inf
from typing import Final

SILENT_S: Final = 8.0
"""Time (s) of an operation, and since the last response of the store, after which the store is silent. Agents look at
their stores more often, so that a long operation alone, such as a list of a large folder, makes no store silent."""

TRY_S: Final = 2.0
"""Interval (s) at which an operation is tried at a silent store."""

BULK_S: Final = 45.0
"""The same for an operation that transfers much; longer than the limits of a bucket's HTTP requests."""


class StoreSilence:
    """Since when one store is silent. Any response ends it."""

    def __init__(self) -> None:
        """Start with a store that is not silent."""
        self._responded_at = -inf
        self._silent_at = -inf
        self._tried_at = -inf

    @property
    def is_silent(self) -> bool:
        """Whether the store has not responded since it was found silent."""
        return self._silent_at > self._responded_at

    def may_start(self, now: float, *, has_thread: bool) -> bool:
        """Whether an operation may start at `now` (monotonic time, s). One each TRY_S is tried at a silent store.

        Args:
            has_thread: whether a thread is free, so that none waits behind operations that do not end.
        """
        if not self.is_silent:
            return True
        if not has_thread or now < self._tried_at + TRY_S:
            return False
        self._tried_at = now
        return True

    def responded(self, now: float) -> None:
        """Record a response of the store."""
        self._responded_at = now

    def is_over(self, started_at: float | None, now: float, patience_s: float = SILENT_S) -> bool:
        """Whether an operation without a response fails at `now`: the store is silent for `patience_s` (s), or was
        found silent while the operation waits for a thread.

        Args:
            started_at: when (monotonic time, s) the operation started; None if it waits for a thread.
        """
        if started_at is None:
            return self.is_silent
        if now - max(started_at, self._responded_at) < patience_s:
            return False
        self._silent_at = now
        return True
