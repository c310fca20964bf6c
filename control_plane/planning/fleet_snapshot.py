"""The snapshot in use: one place that intake fills, planning reads, and status shows."""

from __future__ import annotations

from collections.abc import Container, Mapping

from penstock.fleet import snapshot as snapshots
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import ReportVerdict, Snapshot
from penstock.health.region_health import RegionHealth
from penstock.policy.policy import Policy


class FleetSnapshot:
    """Holds the newest snapshot; what it may contain is decided in `penstock.fleet.snapshot`."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()

    def take_in(self, report: AgentReport, now: float, policy: Policy) -> ReportVerdict:
        """Add a report, or refuse it."""
        self.snapshot, verdict = snapshots.add_report(self.snapshot, report, now, policy)
        return verdict

    def tick(self, now: float, policy: Policy, drained: Container[str] = ()) -> None:
        """Let time pass, while operators want some regions empty."""
        self.snapshot = snapshots.tick(self.snapshot, now, policy, drained)

    def resume(self, now: float) -> None:
        """Begin to lead: what was heard long ago counts no more."""
        self.snapshot = snapshots.resume(self.snapshot, now)

    def inherit(self, beliefs: Mapping[str, RegionHealth]) -> None:
        """Go on where whoever led before was with some regions."""
        self.snapshot = snapshots.inherit(self.snapshot, beliefs)
