"""The simulated autoscalers: their demand, and the expected comparison."""

from __future__ import annotations

from lab.simulate.scaling import LOST, NAMES, STEP_S, Hpa, Scaled, simulate, workload


def test_demand_follows_the_sun_and_the_loss_comes_at_the_peak() -> None:
    work = workload(2, 1)
    assert all(rate > 0 for rates in work.demand for rate in rates.values())
    day = work.demand[int(86_400 / STEP_S) :]
    assert min(rates[LOST] for rates in day) < 20 < 55 < work.demand[work.lost.start][LOST]
    assert len(work.lost) * STEP_S == 1800


def test_a_reactive_autoscaler_is_late_by_the_cold_start() -> None:
    work = workload(2, 1)
    late, instant = (simulate("hpa", Hpa(0.8).desired, work, cold_start_s) for cold_start_s in (600.0, 0.0))
    assert isinstance(late, Scaled)
    assert late.away_share > 3 * instant.away_share
    fixed = simulate("fixed", lambda now, offered, ordered, up: dict.fromkeys(up, 90), work, 0.0)
    assert fixed.unserved_share == fixed.above_target_share == 0.0
    assert fixed.gpu_hours == 24 * 90 * len(NAMES)
