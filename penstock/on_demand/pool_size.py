"""How many endpoints of a pool are awake: one more as soon as the load needs it, one fewer after a quiet time.

The load that wakes an endpoint and the load at which one sleeps differ by SLEEP_MARGIN, and an endpoint sleeps only by
the highest load of a whole `idle_s`. So a load that stays constant is followed by at most one reversal: the number
rises with the queue that the cold start leaves behind, falls once to what the load needs, and stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple

SLEEP_MARGIN: Final = 0.8
"""Part (0-1) of the target utilisation at which the endpoints that remain awake must have room for the load."""

_ROUNDING: Final = 1e-6


class PoolSeen(NamedTuple):
    """The state of one model's endpoints in one region."""

    awake: int
    """Endpoints that have the model loaded."""
    waking: int
    """Endpoints that are waking, and not overdue."""
    load: float
    """Requests that run and that wait."""
    slots: float
    """Concurrent requests of one endpoint."""


class PoolLimits(NamedTuple):
    """The limits of the number of endpoints."""

    least: int
    """Endpoints that are awake without load."""
    most: int
    target_utilisation: float
    """Use (0-1) of the slots above which another endpoint wakes."""
    idle_s: float
    """Time (s) after which an endpoint sleeps that the load of this time did not need; 0: never."""
    keeps_last: bool
    """Whether one endpoint stays awake without load, because it may be the last of the fleet."""


class PoolSize:
    """Decides for one pool. Call `change` periodically."""

    def __init__(self) -> None:
        self._peaks: deque[tuple[float, float]] = deque()
        """(time, load) of the last `idle_s`; only loads above all later loads."""
        self._since: float | None = None

    def change(self, seen: PoolSeen, limits: PoolLimits, now: float) -> int:
        """The number of endpoints to wake, -1 to let one sleep, or 0."""
        if self._since is None:
            self._since = now
        while self._peaks and self._peaks[-1][1] <= seen.load:
            self._peaks.pop()
        self._peaks.append((now, seen.load))
        while now - self._peaks[0][0] > limits.idle_s and len(self._peaks) > 1:
            self._peaks.popleft()
        if (lacking := missing(seen, limits)) > 0:
            return lacking
        if not limits.idle_s or seen.waking or now - self._since < limits.idle_s:
            return 0
        quiet = _needed(self._peaks[0][1], seen.slots * limits.target_utilisation * SLEEP_MARGIN)
        floor = max(limits.least, min(limits.most, quiet), int(limits.keeps_last))
        return -1 if seen.awake > floor else 0


def missing(seen: PoolSeen, limits: PoolLimits) -> int:
    """The number of endpoints to wake for the present load; not positive if enough are awake or waking."""
    needed = _needed(seen.load, seen.slots * limits.target_utilisation)
    return min(limits.most, max(limits.least, needed)) - seen.awake - seen.waking


def is_full(scopes: Iterable[Iterable[str]], waits_s: Mapping[str, float]) -> bool:
    """Whether requests of one of these scopes find no free slot in any ready region that may serve them.

    Args:
        scopes: the regions that may serve the requests.
        waits_s: the expected wait (s) of one more request in each ready region.
    """
    waits = ([waits_s[region] for region in scope if region in waits_s] for scope in scopes)
    return any(min(each, default=0.0) > 0.0 for each in waits)


def _needed(load: float, slots: float) -> int:
    return ceil(load / slots - _ROUNDING) if slots > 0.0 else int(load > 0.0)
