"""The weight that `/readyz` states for anycast announcements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from penstock.planning.plan import Closed, RegionPlan
from regional_agent.readiness import Readiness

PLAN = RegionPlan("eu-de", 1, 1, "", 0.0, ())


def weight(plan: RegionPlan | None, *models: str) -> float:
    endpoints: Any = SimpleNamespace(pools=dict.fromkeys(models))
    config = SimpleNamespace(plan=plan, policy=SimpleNamespace(models={"m": None, "n": None}))
    return Readiness(cast("Any", config), endpoints, lambda: True).weight()


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (None, 1.0),
        (PLAN, 1.0),
        (replace(PLAN, ramp=0.25), 0.25),
        (replace(PLAN, closed=(Closed("eu-de", "m", last_resort=True),)), 1.0),
        (replace(PLAN, closed=(Closed("eu-de", "m", last_resort=True), Closed("eu-de", "n", last_resort=True))), 0.0),
        (replace(PLAN, closed=(Closed("eu-es", "m", last_resort=True), Closed("eu-es", "n", last_resort=True))), 1.0),
    ],
)
def test_a_drained_or_returning_region_attracts_fewer_clients(plan: RegionPlan | None, expected: float) -> None:
    assert weight(plan, "m", "n") == expected
    assert weight(plan) == expected, "without endpoints, as an entry that forwards"
