"""Counters of a run for the live display, and their snapshots."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from lab.demo.records import Outcome, Served
from lab.quantile import quantile

RECENT_S = 4.0
"""Requests that ended within this time (s) count as recent."""


class RegionNow(msgspec.Struct, frozen=True):
    """The figures of one region at one time."""

    name: str
    city: str
    state: str
    running: int
    """Requests in flight at the region's agents."""
    recent: dict[str, int]
    """Requests that the region served within RECENT_S, by home region."""
    own: int
    """Requests served so far whose home is this region."""
    others: int
    """Requests served so far whose home is another region."""


class ImagesNow(msgspec.Struct, frozen=True):
    """Counts of the image jobs so far."""

    asked: int = 0
    answered: int = 0
    unanswered: int = 0
    """Image jobs that were refused or failed."""


class Now(msgspec.Struct, frozen=True):
    """The figures of the fleet at one time."""

    at_s: float
    phase: str
    regions: tuple[RegionNow, ...]
    asked: int
    answered: int
    refused: int
    failed: int
    violations: int
    ttft_p50_ms: float | None
    """Median time (ms) to the first token of the requests answered within RECENT_S."""
    images: ImagesNow = ImagesNow()
    """Image jobs. Of the other counts, only `violations` includes them."""


class Tally:
    """Counts the requests of a run."""

    def __init__(self, regions: Mapping[str, str]) -> None:
        """Args: `regions` maps each region to its city."""
        self._cities = dict(regions)
        self._recent: deque[tuple[float, Served]] = deque()
        self._served: Counter[tuple[str, str]] = Counter()
        self._outcomes: Counter[Outcome] = Counter()
        self._images: Counter[Outcome] = Counter()
        self.asked = 0
        self.images_asked = 0
        self.violations = 0

    def ended(self, served: Served, at_s: float) -> None:
        """Count a completed request."""
        self._outcomes[served.outcome] += 1
        if served.outcome is Outcome.OK:
            self._served[served.server, served.home] += 1
            self._recent.append((at_s, served))

    def image_ended(self, outcome: Outcome) -> None:
        """Count a completed image job."""
        self._images[outcome] += 1

    def now(self, at_s: float, phase: str, states: Mapping[str, str], running: Mapping[str, int]) -> Now:
        """Return a snapshot of the figures at `at_s`.

        Args:
            states: state of each region; a missing region is serving.
            running: requests in flight at each region's agents.
        """
        while self._recent and self._recent[0][0] < at_s - RECENT_S:
            self._recent.popleft()
        answered = [served for _, served in self._recent]
        ttft = [request.ttft_s * 1000 for request in answered if request.ttft_s is not None]
        return Now(
            at_s=at_s,
            phase=phase,
            regions=tuple(self._region(name, answered, states, running) for name in self._cities),
            asked=self.asked,
            answered=self._outcomes[Outcome.OK],
            refused=self._outcomes[Outcome.REFUSED],
            failed=self._outcomes[Outcome.FAILED],
            violations=self.violations,
            ttft_p50_ms=quantile(ttft, 0.5),
            images=ImagesNow(
                self.images_asked,
                self._images[Outcome.OK],
                self._images.total() - self._images[Outcome.OK],
            ),
        )

    def _region(
        self, name: str, answered: Sequence[Served], states: Mapping[str, str], running: Mapping[str, int]
    ) -> RegionNow:
        recent = Counter(request.home for request in answered if request.server == name)
        return RegionNow(
            name=name,
            city=self._cities[name],
            state=states.get(name, "serving"),
            running=running.get(name, 0),
            recent=dict(recent),
            own=self._served[name, name],
            others=sum(n for (server, home), n in self._served.items() if server == name != home),
        )
