"""The current snapshot of the fleet, which report intake updates and planning and status read."""

from __future__ import annotations

from collections.abc import Container, Mapping

from penstock.fleet import snapshot as snapshots
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import ReportVerdict, Snapshot
from penstock.health.region_health import RegionHealth
from penstock.policy.policy import Policy


class FleetSnapshot:
    """Holds the newest snapshot; the rules are in `penstock.fleet.snapshot`."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()

    def add_report(self, report: AgentReport, now: float, policy: Policy) -> ReportVerdict:
        """Add a report, or reject it."""
        self.snapshot, verdict = snapshots.add_report(self.snapshot, report, now, policy)
        return verdict

    def tick(self, now: float, policy: Policy, drained: Container[str] = ()) -> None:
        """Update region health as of `now`; `drained` are the regions that operators drain."""
        self.snapshot = snapshots.tick(self.snapshot, now, policy, drained)

    def resume(self, now: float) -> None:
        """Discard old reports and the region health at the start of a leadership."""
        self.snapshot = snapshots.resume(self.snapshot, now)

    def inherit(self, health: Mapping[str, RegionHealth]) -> None:
        """Continue with the region health of the previous leader."""
        self.snapshot = snapshots.inherit(self.snapshot, health)
