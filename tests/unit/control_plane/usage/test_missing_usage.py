"""What the sums of usage lack is named: agents that hold segments, and regions without a store."""

from __future__ import annotations

from datetime import UTC, datetime

from control_plane.api.routes.usage_routes import LATE_S, held_by_agents, put_by_agents, uncovered
from penstock.fleet.report import AgentReport, LedgerReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from tests.support.planet import policy

NOW = 1_795_780_800.0


def held(agent: str, ledger: LedgerReport | None, age_s: float = 0.0) -> HeldReport:
    return HeldReport(AgentReport("eu-de", agent, 1, 1, NOW - age_s, ledger=ledger), NOW - age_s)


def test_agents_that_hold_or_lost_records_are_named() -> None:
    agents = (
        held("off", None, age_s=100.0),
        held("good", LedgerReport(1, NOW - LATE_S / 2)),
        held("late", LedgerReport(90, NOW - 5400)),
        held("full", LedgerReport(0, None, lost_records=7)),
        held("silent", LedgerReport(), age_s=100.0),
    )
    snapshot = Snapshot({("eu-de", each.report.agent): each for each in agents})
    assert held_by_agents(snapshot, NOW) == (
        "agent full of eu-de had no room for 7 records, which are lost",
        "agent late of eu-de holds 90 segments, the oldest of 2026-11-27T10:30:00+00:00",
        "agent silent of eu-de does not report; segments that it holds are missing",
    )


def test_the_last_segments_of_agents_are_sought_while_retention_cannot_have_removed_them() -> None:
    def named(agent: str, last_put: str) -> HeldReport:
        return held(agent, LedgerReport(last_put=last_put))

    path = "day=2026-11-{}/region=eu-de/{}-5-1.parquet"
    agents = (
        held("off", None),
        named("new", ""),
        named("odd", "../../etc/passwd"),
        named("today", path.format(27, "today")),
        named("night", path.format(26, "night")),
        named("idle", path.format(25, "idle")),
    )
    snapshot = Snapshot({("eu-de", each.report.agent): each for each in agents})
    assert [name.agent for name in put_by_agents(snapshot, datetime.fromtimestamp(NOW, UTC).date())] == [
        "night",
        "today",
    ]


def test_regions_without_a_store_are_named() -> None:
    assert uncovered(policy())[0] == "no usage store covers eu-de: its agents hold their records"
