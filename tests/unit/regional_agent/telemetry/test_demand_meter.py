import msgspec
import pytest
from msgspec.structs import replace

from control_plane.planning.report_intake import MAX_REPORT_BYTES
from penstock.fleet.demand import MAX_CLASSES
from penstock.policy.kinds.tenants import BATCH_PRIORITY, MIN_PRIORITY
from penstock.policy.residency import residency_class
from regional_agent.telemetry.demand_meter import DemandMeter

EU = residency_class(frozenset({"eu-de", "eu-es"}))
ALL = residency_class(frozenset({"eu-de", "eu-es", "us-east"}))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> DemandMeter:
    return DemandMeter(clock)


def run(meter: DemandMeter, clock: Clock, seconds: int, per_s: int) -> None:
    for _ in range(seconds):
        for _ in range(per_s):
            meter.offered("m", EU)
        clock.now += 1.0
        meter.settle()


def test_measures_demand_soon_after_the_start(meter: DemandMeter, clock: Clock) -> None:
    run(meter, clock, 1, 10)
    assert meter.per_s("m") == pytest.approx(10.0)


def test_follows_a_step_within_two_seconds_but_not_one_noisy_second(meter: DemandMeter, clock: Clock) -> None:
    run(meter, clock, 60, 10)
    assert meter.per_s("m") == pytest.approx(10.0)
    run(meter, clock, 2, 40)
    assert 20.0 < meter.per_s("m") < 40.0
    run(meter, clock, 20, 40)
    assert meter.per_s("m") == pytest.approx(40.0, rel=0.01)


def test_drops_demand_that_has_ended(meter: DemandMeter, clock: Clock) -> None:
    run(meter, clock, 20, 10)
    run(meter, clock, 3, 0)
    assert 0.0 < meter.per_s("m") < 5.0
    run(meter, clock, 40, 0)
    assert meter.report() == ()
    assert meter.per_s("m") == 0.0


def test_rates_follow_demand_without_reports(meter: DemandMeter, clock: Clock) -> None:
    run(meter, clock, 60, 10)
    for _ in range(60):
        clock.now += 1.0
        meter.per_s("m")
    assert meter.per_s("m") < 0.1, "there are no reports without a control plane"
    for _ in range(60):
        meter.offered("m", EU, priority=BATCH_PRIORITY)
        clock.now += 1.0
        meter.batch_per_s("m")
    assert meter.batch_per_s("m") == pytest.approx(1.0, rel=0.1)


def test_reports_each_traffic_class_with_its_regions(meter: DemandMeter, clock: Clock) -> None:
    meter.offered("m", EU)
    meter.offered("m", ALL)
    meter.offered("n", EU)
    clock.now += 1.0
    meter.settle()
    assert {(offered.model, offered.residency): offered.regions for offered in meter.report()} == {
        ("m", EU.name): ("eu-de", "eu-es"),
        ("m", ALL.name): ("eu-de", "eu-es", "us-east"),
        ("n", EU.name): ("eu-de", "eu-es"),
    }
    assert meter.per_s("m") == pytest.approx(2.0)


def test_limits_the_number_of_traffic_classes(meter: DemandMeter, clock: Clock) -> None:
    for number in range(MAX_CLASSES + 100):
        meter.offered(f"m-{number}", EU)
    clock.now += 1.0
    meter.settle()
    rows = meter.report()
    assert len(rows) == MAX_CLASSES
    regions = tuple(f"continent-region-{number:02d}" for number in range(20))
    longest = [replace(row, model="m" * 64, regions=regions, priority=MIN_PRIORITY) for row in rows]
    assert len(msgspec.msgpack.encode(longest)) < MAX_REPORT_BYTES / 1.5, "the leader accepts the report"


def test_second_settle_at_the_same_time_changes_nothing(meter: DemandMeter, clock: Clock) -> None:
    run(meter, clock, 3, 10)
    meter.offered("m", EU)
    meter.settle()
    assert meter.per_s("m") == pytest.approx(10.0)
    clock.now += 1.0
    meter.settle()
    assert meter.per_s("m") < 10.0


def test_reports_countries_while_they_have_demand(meter: DemandMeter, clock: Clock) -> None:
    for country in ("DE", "DE", None, "not a code"):
        meter.offered("m", EU, country)
    clock.now += 1.0
    meter.settle()
    assert {row.country: row.requests_per_s for row in meter.report_countries()} == pytest.approx({"DE": 2.0, "": 1.0})
    clock.now += 60.0
    meter.settle()
    assert meter.report_countries() == ()
