"""Counters of a run while it happens."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from lab.demo.records import Outcome, Served
from lab.quantile import quantile

RECENT_S = 4.0
"""Requests that ended within this time (s) count as recent."""


class Now(msgspec.Struct, frozen=True):
    """The figures of the fleet at one time."""

    at_s: float
    phase: str
    answered: int
    refused: int
    failed: int
    violations: int
    """Residency violations, of image jobs too; all other counts are of chats."""
    ttft_p50_ms: float | None
    """Median time (ms) to the first token of the recent requests."""
    away: Counter[tuple[str, str]]
    """Recent requests that another region than their home served, by home and server."""
    images_asked: int
    images_answered: int


class Tally:
    """Counts the requests of a run."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, Served]] = deque()
        self._outcomes: Counter[Outcome] = Counter()
        self._images: Counter[Outcome] = Counter()
        self.violations = 0

    def ended(self, served: Served, at_s: float) -> None:
        """Count a completed request."""
        self._outcomes[served.outcome] += 1
        if served.outcome is Outcome.OK:
            self._recent.append((at_s, served))

    def image_ended(self, outcome: Outcome) -> None:
        """Count a completed image job."""
        self._images[outcome] += 1

    def now(self, at_s: float, phase: str, images_asked: int) -> Now:
        """Return the figures at `at_s`."""
        while self._recent and self._recent[0][0] < at_s - RECENT_S:
            self._recent.popleft()
        recent = [served for _, served in self._recent]
        return Now(
            at_s=at_s,
            phase=phase,
            answered=self._outcomes[Outcome.OK],
            refused=self._outcomes[Outcome.REFUSED],
            failed=self._outcomes[Outcome.FAILED],
            violations=self.violations,
            ttft_p50_ms=quantile([served.ttft_s * 1000 for served in recent if served.ttft_s is not None], 0.5),
            away=Counter((served.home, served.server) for served in recent if served.home != served.server),
            images_asked=images_asked,
            images_answered=self._images[Outcome.OK],
        )
