"""Clocks that a test sets or advances."""

from __future__ import annotations

import time


class SetClock:
    """A clock that a test sets."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class AdvancingClock:
    """Advances with real time, plus `skipped_s`."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_s
