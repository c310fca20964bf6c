"""The simulated day of a batch: what it uses, and that clients do not pay for it."""

from __future__ import annotations

import pytest

from lab.simulate import batch_day
from lab.simulate.batch_day import HOME, SERVICE_S, SLOTS, DayRun
from lab.simulate.batch_day_results import Bounds
from penstock.admission.batch_preemption import MAX_PREEMPTIONS

QUIET = dict.fromkeys(batch_day.LONGITUDES, [0.3 * SLOTS / SERVICE_S] * 8)
"""Minutes in which clients occupy about a third of the slots."""


def day(demand: dict[str, list[float]], bounds: Bounds, *, with_batch: bool = True) -> DayRun:
    run = DayRun(bounds, with_batch=with_batch)
    run.run(demand)
    return run


def test_a_batch_fills_idle_slots_of_all_regions_up_to_its_bound_and_delays_no_client() -> None:
    without, run = day(QUIET, Bounds(0.75, 0.8), with_batch=False), day(QUIET, Bounds(0.75, 0.8))
    assert (without.batch_s, run.waits_s) == (0.0, without.waits_s)
    assert max(run.waits_s) == 0.0
    found = run.result("a batch")
    assert found.away_share > 0.5
    assert 0.4 < found.idle_used_share < 0.75
    more = day(QUIET, Bounds(1.0, 1.0)).result("all slots")
    assert more.idle_used_share > found.idle_used_share


def test_a_region_whose_clients_need_all_slots_runs_nothing_of_the_batch() -> None:
    full = {name: [2.0 * SLOTS / SERVICE_S] * 8 for name in QUIET}
    run = day(full, Bounds(0.75, 0.8))
    assert all(not site.batch for site in run.sites.values())
    away = {name: rates if name != HOME else full[name] for name, rates in QUIET.items()}
    run = day(away, Bounds(0.75, 0.8))
    assert not run.sites[HOME].batch
    assert run.result("home is full").away_share > 0.8


def test_with_preemption_a_batch_uses_what_is_idle_and_no_client_waits() -> None:
    run = day(QUIET, Bounds(1.0, 1.0, preempts=True))
    found = run.result("all slots")
    assert max(run.waits_s) == 0.0
    assert found.preempted > 0
    assert 0.9 < found.idle_used_share + found.lost_share < 1.0
    assert found.lost_share < 0.05
    assert all(item.preemptions <= MAX_PREEMPTIONS for site in run.sites.values() for item in site.batch)


def test_clients_that_wait_for_slots_cost_the_batch_less() -> None:
    uses = [0.3, 0.3, 0.8, 0.8] * 4
    bursts = {name: [use * SLOTS / SERVICE_S for use in uses] for name in QUIET}
    at_once, patient = (
        day(bursts, Bounds(1.0, 1.0, preempts=True, patience=patience)).result("bursts") for patience in (0.0, 0.12)
    )
    assert patient.lost_share < 0.5 * at_once.lost_share
    assert patient.idle_used_share > at_once.idle_used_share + 0.05
    assert patient.wait_p99_s <= 0.12 * SERVICE_S + 0.001


def test_the_batch_pays_the_price_of_the_hour() -> None:
    found = day(QUIET, Bounds(0.75, 0.8)).result("night in some regions")
    assert batch_day.NIGHT_PRICE < found.mean_price < 1.0


@pytest.mark.parametrize(("longitude", "hours"), [(10.0, (21, 5)), (-80.0, (3, 11)), (90.0, (16, 24))])
def test_nights_are_local(longitude: float, hours: tuple[int, int]) -> None:
    assert batch_day._night(longitude) == hours
