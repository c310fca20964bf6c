"""Counts of the attempts at one endpoint, as plain numbers."""

from __future__ import annotations

from typing import Final

from penstock.health.outlier_ejection import AttemptOutcome
from penstock.meters.duration_histogram import DurationHistogram

FIRST_BYTE_BUCKETS_S = (0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Upper bounds (s) of the time to first byte; fewer than those of a model, since each endpoint has its own."""

DURATION_BUCKETS_S = (0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds (s) of the time for which a request holds its slot."""

CONNECT_BUCKETS_S = (0.005, 0.02, 0.1, 0.3, 1.0, 3.0)
"""Upper bounds (s) of the time to a connection."""

_SERVED: Final = AttemptOutcome.SERVED
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class EndpointTraffic:
    """The attempts at one endpoint, or at all endpoints that have no series of their own."""

    def __init__(self) -> None:
        self.served = 0
        """Attempts whose response was complete."""
        self.other_outcomes: dict[AttemptOutcome, int] = {}
        """Attempts that ended in another way, by outcome."""
        self.first_bytes = DurationHistogram(FIRST_BYTE_BUCKETS_S)
        """Time from the sent request to the first byte of its response."""
        self.durations = DurationHistogram(DURATION_BUCKETS_S)
        """Time for which requests with complete responses held their slots."""
        self.connects = DurationHistogram(CONNECT_BUCKETS_S)
        """Time for which requests without an idle connection waited for a new one."""
        self.ejections = 0
        self.suspicions = 0

    def ended(self, outcome: AttemptOutcome, service_s: float | None) -> None:
        """Count one attempt.

        Args:
            service_s: time (s) for which it held its slot, if its response is complete; else None.
        """
        if service_s is not None:
            self.durations.observe(service_s)
        if outcome is _SERVED:
            self.served += 1
        else:
            self.other_outcomes[outcome] = self.other_outcomes.get(outcome, 0) + 1

    def outcomes(self) -> list[tuple[AttemptOutcome, int]]:
        """Return the number of attempts by outcome."""
        return [(_SERVED, self.served), *self.other_outcomes.items()]

    def add(self, other: EndpointTraffic) -> None:
        """Add the counts of `other`."""
        self.served += other.served
        for outcome, count in other.other_outcomes.items():
            self.other_outcomes[outcome] = self.other_outcomes.get(outcome, 0) + count
        self.first_bytes.add(other.first_bytes)
        self.durations.add(other.durations)
        self.connects.add(other.connects)
        self.ejections += other.ejections
        self.suspicions += other.suspicions
