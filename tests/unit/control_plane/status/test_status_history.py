"""The history of the status is bounded, and has gaps where a series had no value."""

from __future__ import annotations

import pytest

from control_plane.status import status_history
from control_plane.status.objective_status import ObjectiveStatus
from control_plane.status.status import DemandStatus, PoolStatus, RegionStatus, SpilloverStatus
from control_plane.status.status_history import SAMPLES, HistoryMeasure, RecentHistory, StatusHistory
from penstock.health.region_health import RegionState


def region(name: str, in_flight: int = 2, attained: float | None = None) -> RegionStatus:
    pools = (PoolStatus("m", 1, 1, 4, in_flight, 1.0, ("n",)), PoolStatus("n", 1, 1, 4, in_flight, 1.0, ("m",)))
    return RegionStatus(
        name,
        "Frankfurt",
        "DE",
        50.0,
        8.0,
        RegionState.HEALTHY,
        60.0,
        0.5,
        pools,
        (DemandStatus("m", "all", 3.0),),
        (ObjectiveStatus("m", 1.0, 0.9, 10, 9, attained, None),),
        (SpilloverStatus("m", 5, 0, 0, 0),),
    )


def values(
    found: RecentHistory, name: str, measure: HistoryMeasure, model: str = ""
) -> tuple[float | None, ...] | None:
    return next(
        (each.values for each in found.series if (each.region, each.measure, each.model) == (name, measure, model)),
        None,
    )


def test_a_region_has_its_pools_and_the_fleet_its_models() -> None:
    history = StatusHistory()
    history.add(10.0, (region("a", in_flight=1), region("b", in_flight=3)))
    fleet, one = history.prepared(None)(), history.prepared("a")()
    assert fleet.at == (10.0,)
    assert values(fleet, "", HistoryMeasure.DEMAND) == (6.0,)
    assert values(fleet, "", HistoryMeasure.LOAD) == (0.5,), "slots that two models share count once"
    assert values(fleet, "", HistoryMeasure.LOAD, "m") == (0.5,)
    assert values(fleet, "a", HistoryMeasure.LOAD) == (0.25,)
    assert values(fleet, "a", HistoryMeasure.LOAD, "m") is None
    assert values(one, "a", HistoryMeasure.LOAD, "m") == (0.25,)
    assert values(one, "a", HistoryMeasure.WAITING) == (5.0,)
    assert {each.region for each in one.series} == {"a"}


def test_values_have_gaps_and_old_series_end() -> None:
    history = StatusHistory()
    history.add(0.0, (region("a"),))
    history.add(10.0, (region("b", attained=0.5),))
    history.add(20.0, (region("a"), region("b")))
    prepared = history.prepared(None)
    history.add(30.0, (region("a"),))
    found = prepared()
    assert values(found, "a", HistoryMeasure.LOAD) == (0.5, None, 0.5), "a later sample changes nothing"
    assert values(found, "b", HistoryMeasure.ATTAINED_FIRST_BYTE, "m") == (None, 0.5, None)
    for sample in range(SAMPLES):
        history.add(30.0 + sample, (region("a"),))
    found = history.prepared(None)()
    assert len(found.at) == SAMPLES
    assert {len(each.values) for each in found.series} == {SAMPLES}
    assert values(found, "b", HistoryMeasure.LOAD) is None


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_history, "MAX_SERIES", 4)
    history = StatusHistory()
    history.add(0.0, [region(str(number)) for number in range(9)])
    history.add(1.0, [region(str(number)) for number in range(9)])
    assert len(history.prepared("0")().series) == 4
    history.clear()
    assert history.prepared("0")() == RecentHistory((), ())
