"""The report of the front-door demo counts what clients saw, and names broken promises."""

from __future__ import annotations

from lab.front_door.__main__ import problems_of, report_of
from lab.front_door.entries import ENTRIES, EU_NAME, OPEN_NAME, bundle
from lab.front_door.resolving_clients import NOT_CONNECTED, Answered


def answered(
    at: float, entry: str, region: str, problem: str = "", name: str = EU_NAME, *, is_saved: bool = False
) -> Answered:
    return Answered(name, at, at + 0.1, ENTRIES[entry], region, problem, is_saved)


def test_requests_before_and_after_the_kill_are_counted() -> None:
    found = [
        answered(1.0, "eu-de", "eu-de"),
        answered(10.5, "eu-de", "", NOT_CONNECTED),
        answered(11.0, "eu-de", "", NOT_CONNECTED, is_saved=True),
        answered(16.0, "us-east", "us-east", name=OPEN_NAME),
        answered(17.0, "eu-es", "eu-es"),
    ]
    report = report_of(found, 10.0, {EU_NAME: 0.4})
    assert report.requests == {"before": 1, "after": 4}
    assert report.lost == {"before": {}, "after": {NOT_CONNECTED: 2}}
    assert report.lost_for_good == {NOT_CONNECTED: 1}
    assert report.last_dead_s == 1.0
    assert report.served_by == {"before": {"eu-de": 1}, "from 5 s after": {"eu-es": 1, "us-east": 1}}
    assert problems_of(report) == []


def test_broken_promises_are_named() -> None:
    found = [
        answered(1.0, "eu-es", "", "status 500"),
        answered(2.0, "eu-es", "us-east"),
        answered(3.0, "us-east", ""),
        answered(16.0, "eu-de", "eu-de"),
    ]
    report = report_of(found, 10.0, {EU_NAME: 4.0})
    assert report.forbidden == 2
    assert len(problems_of(report)) == 4


def test_a_fleet_that_serves_nothing_keeps_no_promise() -> None:
    found = [answered(1.0, "eu-de", "eu-de"), answered(16.0, "eu-es", "", "no address")]
    assert len(problems_of(report_of(found, 10.0, {EU_NAME: 0.4}))) == 1


def test_the_regions_have_entries() -> None:
    assert all(address in bundle()["regions.yaml"] for address in ENTRIES.values())
