from collections import Counter
from collections.abc import Iterable
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from control_plane.planning.report_intake import MAX_REPORT_BYTES
from penstock.fleet.demand import MAX_ROWS, DemandRows
from penstock.meters.demand_meter import DemandMeter
from penstock.policy.kinds.tenants import BATCH_PRIORITY, MIN_PRIORITY
from penstock.policy.residency import ResidencyClass, residency_class
from tests.support.clocks import SetClock

EU = residency_class(frozenset({"eu-de", "eu-es"}))
ALL = residency_class(frozenset({"eu-de", "eu-es", "us-east"}))


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def meter(clock: SetClock) -> DemandMeter:
    return DemandMeter(clock())


def run(meter: DemandMeter, clock: SetClock, seconds: int, per_s: int) -> None:
    for _ in range(seconds):
        for _ in range(per_s):
            meter.offered("m", EU)
        clock.now += 1.0
        meter.settle(clock())


def test_measures_demand_soon_after_the_start(meter: DemandMeter, clock: SetClock) -> None:
    run(meter, clock, 1, 10)
    assert meter.per_s("m", clock()) == pytest.approx(10.0)


def test_follows_a_step_within_two_seconds_but_not_one_noisy_second(meter: DemandMeter, clock: SetClock) -> None:
    run(meter, clock, 60, 10)
    assert meter.per_s("m", clock()) == pytest.approx(10.0)
    run(meter, clock, 2, 40)
    assert 20.0 < meter.per_s("m", clock()) < 40.0
    run(meter, clock, 20, 40)
    assert meter.per_s("m", clock()) == pytest.approx(40.0, rel=0.01)


def test_drops_demand_that_has_ended(meter: DemandMeter, clock: SetClock) -> None:
    run(meter, clock, 20, 10)
    run(meter, clock, 3, 0)
    assert 0.0 < meter.per_s("m", clock()) < 5.0
    run(meter, clock, 40, 0)
    assert meter.report() == ()
    assert meter.per_s("m", clock()) == 0.0


def test_rates_follow_demand_without_reports(meter: DemandMeter, clock: SetClock) -> None:
    run(meter, clock, 60, 10)
    for _ in range(60):
        clock.now += 1.0
        meter.per_s("m", clock())
    assert meter.per_s("m", clock()) < 0.1, "there are no reports without a control plane"
    for _ in range(60):
        meter.offered("m", EU, priority=BATCH_PRIORITY)
        clock.now += 1.0
        meter.batch_per_s("m", clock())
    assert meter.batch_per_s("m", clock()) == pytest.approx(1.0, rel=0.1)


def test_reports_each_traffic_class_with_its_regions(meter: DemandMeter, clock: SetClock) -> None:
    meter.offered("m", EU)
    meter.offered("m", ALL)
    meter.offered("n", EU)
    clock.now += 1.0
    meter.settle(clock())
    assert {(offered.model, offered.residency): offered.regions for offered in meter.report()} == {
        ("m", EU.name): ("eu-de", "eu-es"),
        ("m", ALL.name): ("eu-de", "eu-es", "us-east"),
        ("n", EU.name): ("eu-de", "eu-es"),
    }
    assert meter.per_s("m", clock()) == pytest.approx(2.0)


def offer_each(meter: DemandMeter, clock: SetClock, models: Iterable[str], priorities: Iterable[int]) -> None:
    for model, priority in product(models, priorities):
        meter.offered(model, EU, priority=priority)
    clock.now += 1.0
    meter.settle(clock())


def test_limits_the_number_of_rows(meter: DemandMeter, clock: SetClock) -> None:
    offer_each(meter, clock, [f"m-{number}" for number in range(MAX_ROWS + 100)], [0])
    rows = meter.report()
    assert (len(rows), meter.rows.merged, meter.rows.lost) == (MAX_ROWS, 0, 100)
    regions = tuple(f"continent-region-{number:02d}" for number in range(20))
    longest = [replace(row, model="m" * 64, regions=regions, priority=MIN_PRIORITY) for row in rows]
    assert len(msgspec.msgpack.encode(longest)) < MAX_REPORT_BYTES / 1.5, "the leader accepts the report"


def test_priorities_of_a_client_do_not_make_the_report_of_a_large_fleet_too_large(
    meter: DemandMeter, clock: SetClock
) -> None:
    everywhere = residency_class(frozenset(f"ap-southeast-{number:02d}" for number in range(100)))
    for priority in range(MIN_PRIORITY, 1):
        meter.offered("m" * 64, everywhere, priority=priority)
    meter.offered("another", everywhere)
    clock.now += 1.0
    meter.settle(clock())
    rows = meter.report()
    assert len(msgspec.msgpack.encode(rows)) < MAX_REPORT_BYTES / 1.5, "the leader accepts the report"
    assert {row.model for row in rows} == {"m" * 64, "another"}
    assert sum(row.requests_per_s for row in rows) == pytest.approx(1002, rel=0.3)
    assert meter.rows.lost == 0


def test_a_full_table_counts_a_priority_with_the_nearest_one(meter: DemandMeter, clock: SetClock) -> None:
    offer_each(meter, clock, ["m"], range(MAX_ROWS))
    for _ in range(50):
        meter.offered("m", EU, priority=MAX_ROWS + 300)
    clock.now += 1.0
    meter.settle(clock())
    rates = {row.priority: row.requests_per_s for row in meter.report()}
    assert len(rates) == MAX_ROWS
    assert rates[MAX_ROWS - 1] > 10.0, "its neighbours have less than 1/s"
    assert (meter.rows.merged, meter.rows.lost) == (50, 0)


def test_priorities_yield_to_new_classes_and_classes_to_new_models(meter: DemandMeter, clock: SetClock) -> None:
    offer_each(meter, clock, [f"m-{number}" for number in range(MAX_ROWS // 2)], [0, 5])
    for number in range(MAX_ROWS // 2):
        meter.offered(f"m-{number}", ALL)
    for number in range(20):
        meter.offered(f"new-{number}", ALL)
    meter.offered("m-20", residency_class(frozenset({"eu-de", "eu-fr"})))
    clock.now += 1.0
    meter.settle(clock())
    rows = meter.report()
    assert len(rows) == MAX_ROWS
    assert sum(meter.per_s(model, clock()) for model in {row.model for row in rows}) == pytest.approx(MAX_ROWS, rel=0.3)
    assert {row.model for row in rows} >= {f"new-{number}" for number in range(20)}
    merged = [row.residency for row in rows if row.model == "m-20"]
    assert set(merged) <= {EU.name, ALL.name}
    assert (meter.rows.merged, meter.rows.lost) == (1, 0)


def test_rows_are_free_again_once_demand_has_ended(meter: DemandMeter, clock: SetClock) -> None:
    offer_each(meter, clock, ["m"], range(MAX_ROWS + 10))
    run(meter, clock, 40, 0)
    meter.offered("m", EU, priority=MAX_ROWS + 5)
    clock.now += 1.0
    meter.settle(clock())
    assert [row.priority for row in meter.report()] == [MAX_ROWS + 5]


@given(
    offers=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from((EU, ALL)), st.integers(0, 3), st.integers(1, 4)), max_size=40
    ),
    room=st.integers(3, 6),
)
def test_no_demand_of_a_model_is_lost(offers: list[tuple[str, ResidencyClass, int, int]], room: int) -> None:
    rows = DemandRows(room)
    offered, counted = Counter[str](), Counter[str]()
    for model, residency, priority, number in offers:
        offered[model] += number
        for _ in range(number):
            rate = rows.rates.get((model, residency.name, priority)) or rows.of(model, residency, priority)
            assert rate is not None
            rate.arrived += 1
    for (model, _, _), rate in rows.rates.items():
        counted[model] += rate.arrived
    assert counted == offered
    assert len(rows.rates) <= room


def test_second_settle_at_the_same_time_changes_nothing(meter: DemandMeter, clock: SetClock) -> None:
    run(meter, clock, 3, 10)
    meter.offered("m", EU)
    meter.settle(clock())
    assert meter.per_s("m", clock()) == pytest.approx(10.0)
    clock.now += 1.0
    meter.settle(clock())
    assert meter.per_s("m", clock()) < 10.0


def test_reports_countries_while_they_have_demand(meter: DemandMeter, clock: SetClock) -> None:
    for country in ("DE", "DE", None, "not a code"):
        meter.offered("m", EU, country)
    clock.now += 1.0
    meter.settle(clock())
    assert {row.country: row.requests_per_s for row in meter.report_countries()} == pytest.approx({"DE": 2.0, "": 1.0})
    clock.now += 60.0
    meter.settle(clock())
    assert meter.report_countries() == ()
