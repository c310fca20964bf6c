"""Plans from reports of a given age, as a leader does whose reports travel."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import Planner
from penstock.planning.tick_input import TickInput
from penstock.policy.policy import Policy

Regional = TypeVar("Regional")
Reports = Mapping[str, tuple[PoolReport, tuple[DemandReport, ...]]]
"""By region: its only pool and its demand."""


class DelayedPlanner(Generic[Regional]):
    """The planner of a simulation, and the reports that have not reached it yet."""

    def __init__(self, policy: Policy, planner: Planner, report_age_s: float, interval_s: float) -> None:
        """Create a planner without plans."""
        self.plans: dict[str, RegionPlan] = {}
        self._policy = policy
        self._age_s, self._interval_s = report_age_s, interval_s
        self._planner = planner
        self._reported: deque[tuple[float, Snapshot, Regional]] = deque()
        self._generation = 0

    def report(
        self, reports: Reports, health: Mapping[str, RegionHealth], also: Regional, now: float
    ) -> tuple[Snapshot, Regional] | None:
        """Add the reports of one time; return the newest that are old enough, each returned once.

        Args:
            also: what else regions reported.
        """
        self._reported.append((now, snapshot_of(reports, health, now), also))
        found: tuple[Snapshot, Regional] | None = None
        while self._reported and self._reported[0][0] <= now - self._age_s:
            _, snapshot, others = self._reported.popleft()
            found = snapshot, others
        return found

    def plan(self, snapshot: Snapshot, now: float) -> None:
        """Replace the plans."""
        self._generation += 1
        self.plans = self._planner.plan(
            TickInput(
                policy=self._policy,
                snapshot=snapshot,
                previous=self.plans,
                now=now,
                epoch=1,
                generation=self._generation,
                elapsed_s=self._interval_s,
            )
        ).plans


def snapshot_of(reports: Reports, health: Mapping[str, RegionHealth], now: float) -> Snapshot:
    """Return the fleet as its regions report it, with one agent per region."""
    agents = {
        (name, "one"): HeldReport(AgentReport(name, "one", 1, 1, now, (pool,), demand), now, now)
        for name, (pool, demand) in reports.items()
    }
    return Snapshot(agents, dict(health))
