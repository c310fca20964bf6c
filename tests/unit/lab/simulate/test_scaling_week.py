"""The simulated week: its demand, and the bounds of the comparison."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lab.simulate import scaling_week
from lab.simulate.scaling_week import LONGITUDES, STEPS_A_WEEK, demand_of, foresight, simulate_week


def test_demand_has_two_weeks_and_follows_the_sun_without_traces(tmp_path: Path) -> None:
    demand = demand_of(tmp_path)
    assert {name: len(rates) for name, rates in demand.items()} == dict.fromkeys(LONGITUDES, 2 * STEPS_A_WEEK)
    for rates in demand.values():
        assert sum(rates) / len(rates) == pytest.approx(scaling_week.MEAN_PER_S, rel=0.02)
    assert demand["asia"] != demand["europe"]


def test_foresight_is_within_the_objective_and_too_few_endpoints_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_week, "STEPS_A_WEEK", 200)
    demand = {name: [40.0 + 30.0 * (step % 100 > 50) for step in range(400)] for name in LONGITUDES}
    found = simulate_week("foresight", foresight(demand), demand)
    assert found.below_objective_share == 0.0
    assert found.changes > 0
    few = simulate_week("few", lambda step, loads: dict.fromkeys(loads, 24), demand)
    assert few.below_objective_share == pytest.approx(0.49, abs=0.05)
    assert few.gpu_hours == pytest.approx(4 * 24 * 200 * 30.0 / 3600.0)


def test_bursts_in_random_order_keep_their_mean_and_do_not_repeat(tmp_path: Path) -> None:
    hour = [1.0 + 0.5 * (step % 120 < 40) for step in range(120)]
    repeated, drawn = (scaling_week._drawn(hour, 1200, block, Random(1)) for block in (0, 10))
    assert list(repeated[:120]) == list(repeated[120:240]) == hour
    assert list(drawn[:120]) != list(drawn[120:240])
    assert drawn.mean() == pytest.approx(repeated.mean(), rel=0.05)
