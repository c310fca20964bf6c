"""What agents measure in place of what policy assumes."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.fleet.counts.message_bytes import MessageBytes
from penstock.fleet.snapshot import FRESH_S, HeldReport
from penstock.planning.measurements import measured_bytes
from tests.support.three_regions import POLICY, fleet, region


def sized(name: str, *sizes: MessageBytes, received_at: float = 0.0) -> HeldReport:
    held = region(name)
    return replace(held, report=replace(held.report, message_bytes=sizes), received_at=received_at)


def test_sizes_are_means_of_all_agents_and_few_requests_count_little_beside_the_policy() -> None:
    of_de, of_es = MessageBytes("m", 1000, 2_000.0, 50_000.0), MessageBytes("m", 500, 8_000.0, 20_000.0)
    found = measured_bytes(POLICY, fleet(sized("de", of_de), sized("es", of_es)), 1.0)["m"]
    assert (found.requests, found.request_bytes, found.response_bytes) == (1520, 4_000.0, 40_000.0)
    one = measured_bytes(POLICY, fleet(sized("de", MessageBytes("m", 1, 1e6, 1e6))), 1.0)["m"]
    assert one.request_bytes < 60_000.0


def test_old_reports_unknown_models_and_agents_without_requests_measure_nothing() -> None:
    some = MessageBytes("m", 10, 1.0, 1.0)
    assert measured_bytes(POLICY, fleet(sized("de", some)), FRESH_S + 1.0) == {}
    others = sized("de", replace(some, model="other"), replace(some, requests=0))
    assert measured_bytes(POLICY, fleet(others), 0.0) == {}
    tiny = sized("de", replace(some, requests=1000, request_bytes=0.0))
    assert measured_bytes(POLICY, fleet(tiny), 0.0)["m"].request_bytes < 100.0


def test_a_size_that_changes_a_little_stays() -> None:
    sizes = {
        measured_bytes(POLICY, fleet(sized("de", MessageBytes("m", 1000, 1.0, size))), 0.0)["m"].response_bytes
        for size in (41_400.0, 41_500.0, 41_600.0, 46_000.0)
    }
    assert sizes == {41_000.0, 45_000.0}, "two digits of the mean with the policy's size"
