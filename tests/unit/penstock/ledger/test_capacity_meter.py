"""GPU time of endpoints is divided at the borders of intervals, and none is assumed while the process did not run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.capacity_meter import MAX_GAP_S, CapacityMeter, EndpointGpus, GpuTime

INTERVAL_S = 300.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

START_S = 1_795_780_800.0
H100 = EndpointGpus("h100", 8.0, True, ("a",))
LOST = EndpointGpus("h100", 8.0, False, ("a",))
L4 = EndpointGpus("l4", 1.0, True, ("a", "b"))


@given(st.lists(st.floats(0.01, MAX_GAP_S), max_size=300), st.floats(0.0, INTERVAL_S))
def test_no_time_is_lost_or_counted_twice(steps: list[float], offset_s: float) -> None:
    meter, now, found = CapacityMeter(), 0.0, list[GpuTime]()
    meter.sample((H100,), now, START_S + offset_s)
    for step_s in steps:
        now += step_s
        found += meter.sample((H100, LOST, L4), now, START_S + offset_s + now)
    found += meter.end()
    of_class = {name: [each for each in found if each.gpu_class == name] for name in ("h100", "l4")}
    for name, gpus in (("h100", 8.0), ("l4", 1.0)):
        assert sum(each.ready_gpu_s for each in of_class[name]) == pytest.approx(gpus * now)
        assert all(each.ready_gpu_s <= gpus * INTERVAL_S + 1e-3 for each in of_class[name])
    assert sum(each.unready_gpu_s for each in found) == pytest.approx(8.0 * now)
    for model, gpus in (("a", 8.5), ("b", 0.5)):
        assert sum(each.ready_gpu_s for each in found if each.model == model) == pytest.approx(gpus * now)
    for each in found:
        assert (each.at_ms + 1) % int(INTERVAL_S * 1000) == 0


@pytest.mark.parametrize(("before_s", "after_s"), [(1.0, 3.0), (4.0, 0.5), (2.0, 0.0)])
def test_time_is_divided_at_the_border_of_two_intervals(before_s: float, after_s: float) -> None:
    meter, border_s = CapacityMeter(), START_S + INTERVAL_S
    meter.sample((H100,), 0.0, border_s - before_s)
    (complete,) = meter.sample((H100,), before_s + after_s, border_s + after_s)
    assert complete == GpuTime(int(border_s * 1000) - 1, "h100", "a", 8.0 * before_s, 0.0)
    assert [each.ready_gpu_s for each in meter.end()] == ([8.0 * after_s] if after_s else [])


def test_a_process_that_did_not_run_saw_no_gpu() -> None:
    meter = CapacityMeter()
    meter.sample((L4,), 0.0, START_S)
    meter.sample((L4,), 100.0, START_S + 100.0)
    assert [each.ready_gpu_s for each in meter.end()] == [MAX_GAP_S / 2] * 2


def test_a_clock_that_jumps_back_neither_loses_nor_doubles_time() -> None:
    meter = CapacityMeter()
    meter.sample((L4,), 0.0, START_S)
    found = meter.sample((L4,), 1.0, START_S - 3600.0)
    meter.sample((L4,), 2.0, START_S - 3599.0)
    assert [each.ready_gpu_s for each in found + meter.end()] == [0.5] * 4
