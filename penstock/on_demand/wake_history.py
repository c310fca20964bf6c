"""What earlier wakes of an endpoint and of a pool came to: when to try again, how long a cold start takes, and where
the step of a rollout has had its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from random import Random
from typing import Final

import msgspec

from penstock.planning.plan import VersionShare

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 300.0
"""Maximum time (s) between two attempts."""

MEASURED: Final = 5
"""Number of cold starts from which the expected one is taken."""


OVERDUE: Final = 2.0
"""Multiple of the expected cold start after which another endpoint wakes in place of one that is not ready."""

MIN_OVERDUE_S: Final = 10.0
"""Time (s) for which no wake is overdue, however short its expected cold start is."""


def overdue_after_s(cold_start_s: float) -> float:
    """Time (s) after which a wake that is expected to take `cold_start_s` counts as none: its hook may hang."""
    return max(MIN_OVERDUE_S, OVERDUE * cold_start_s)


class Attempts(msgspec.Struct, frozen=True):
    """The attempts to wake one endpoint, or to let it sleep, since the last success."""

    failures: int = 0
    not_before: float = -inf
    """Time (s) of the next attempt."""
    problem: str = ""
    """Why the last attempt failed; empty if it did not."""

    def failed(self, problem: str, now: float, rng: Random) -> Attempts:
        """The attempts after one that failed at `now` (s): the delay doubles, with jitter."""
        delay_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.failures, 30)) * rng.uniform(0.8, 1.2)
        return Attempts(self.failures + 1, now + delay_s, problem)


class ColdStarts:
    """The cold starts of one pool, measured from the request to wake until the endpoint was ready."""

    def __init__(self) -> None:
        self._took_s: deque[float] = deque(maxlen=MEASURED)

    def add(self, took_s: float) -> None:
        """Count a cold start (s)."""
        self._took_s.append(took_s)

    def expected_s(self, prior_s: float) -> float:
        """The longest of the last cold starts (s); `prior_s` before the first."""
        return max(self._took_s, default=prior_s)


class StepWakes:
    """The endpoints on which a new version was awake since the next step of its rollout is due.

    Other models leave the memory of an endpoint once for a step: a version that has left since, because they were
    needed again, would else take their place again and again until the rollout goes on.
    """

    def __init__(self) -> None:
        self._step: VersionShare | None = None
        self._woken: set[str] = set()

    def add(self, step: VersionShare | None, awake: Iterable[str]) -> None:
        """Count the endpoints that are awake; None if no step is due."""
        if step != self._step:
            self._step, self._woken = step, set()
        if step is not None:
            self._woken.update(awake)

    def may_evict(self, endpoint: str) -> bool:
        """Whether other models may leave the memory of an endpoint for the step."""
        return endpoint not in self._woken
