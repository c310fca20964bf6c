"""What the terminal shows of a run under way: counts that are cheap to keep, and a view of them at a moment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from lab.demo.records import Outcome, Served
from lab.quantile import quantile

RECENT_S = 4.0
"""What ended within this time (s) is shown as going on."""


class RegionNow(msgspec.Struct, frozen=True):
    """One region at a moment."""

    name: str
    city: str
    state: str
    running: int
    """Requests that its agents carry."""
    recent: dict[str, int]
    """Requests that it served lately, by their home."""
    own: int
    """Requests of its own that it has served so far."""
    others: int
    """And of others."""


class Now(msgspec.Struct, frozen=True):
    """The planet at a moment."""

    at_s: float
    phase: str
    regions: tuple[RegionNow, ...]
    asked: int
    answered: int
    refused: int
    failed: int
    violations: int
    ttft_p50_ms: float | None
    """Of what was answered lately."""


class Tally:
    """Counts requests as they end."""

    def __init__(self, regions: Mapping[str, str]) -> None:
        """Args: `regions` gives each region's city."""
        self._cities = dict(regions)
        self._recent: deque[tuple[float, Served]] = deque()
        self._served: Counter[tuple[str, str]] = Counter()
        self._outcomes: Counter[Outcome] = Counter()
        self.asked = 0
        self.violations = 0

    def ended(self, served: Served, at_s: float) -> None:
        """A request is over."""
        self._outcomes[served.outcome] += 1
        if served.outcome is Outcome.OK:
            self._served[served.server, served.home] += 1
            self._recent.append((at_s, served))

    def now(self, at_s: float, phase: str, states: Mapping[str, str], running: Mapping[str, int]) -> Now:
        """The view at `at_s`.

        Args:
            states: each region's state in a word.
            running: requests that each region's agents carry.
        """
        while self._recent and self._recent[0][0] < at_s - RECENT_S:
            self._recent.popleft()
        lately = [served for _, served in self._recent]
        ttft = [one.ttft_s * 1000 for one in lately if one.ttft_s is not None]
        return Now(
            at_s=at_s,
            phase=phase,
            regions=tuple(self._region(name, lately, states, running) for name in self._cities),
            asked=self.asked,
            answered=self._outcomes[Outcome.OK],
            refused=self._outcomes[Outcome.REFUSED],
            failed=self._outcomes[Outcome.FAILED],
            violations=self.violations,
            ttft_p50_ms=quantile(ttft, 0.5),
        )

    def _region(
        self, name: str, lately: Sequence[Served], states: Mapping[str, str], running: Mapping[str, int]
    ) -> RegionNow:
        recent = Counter(one.home for one in lately if one.server == name)
        return RegionNow(
            name=name,
            city=self._cities[name],
            state=states.get(name, "serving"),
            running=running.get(name, 0),
            recent=dict(recent),
            own=self._served[name, name],
            others=sum(n for (server, home), n in self._served.items() if server == name != home),
        )
