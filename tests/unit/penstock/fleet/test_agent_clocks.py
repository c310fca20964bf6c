"""The clock of a control plane is compared with those of most agents that report to it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.fleet.agent_clocks import clock_difference_s
from penstock.fleet.snapshot import HeldReport
from tests.support.reports import report

NOW = 1_800_000_000.0
HOUR_S = 3600.0


def held(ahead_s: float, age_s: float = 1.0) -> HeldReport:
    """A report that arrived `age_s` ago, of an agent whose clock is `ahead_s` behind that of the control plane."""
    return HeldReport(replace(report("eu-de"), sent_at=NOW - age_s - ahead_s), NOW - age_s)


@pytest.mark.parametrize(
    ("reports", "difference_s"),
    [
        ([], 0.0),
        ([held(HOUR_S)], HOUR_S),
        ([held(-HOUR_S)], -HOUR_S),
        ([held(HOUR_S), held(0.5)], 0.5),
        ([held(HOUR_S), held(HOUR_S), held(0.5)], HOUR_S),
        ([held(-HOUR_S), held(HOUR_S), held(0.5), held(0.25)], 0.5),
        ([held(HOUR_S, age_s=100.0), held(0.5)], 0.5),
        ([HeldReport(report("eu-de"), NOW)], 0.0),
    ],
    ids=["none", "ahead", "behind", "one of two", "two of three", "two of four", "an old report", "an unknown time"],
)
def test_most_agents_decide(reports: list[HeldReport], difference_s: float) -> None:
    assert clock_difference_s(reports, NOW) == pytest.approx(difference_s)
