"""Endpoints in the snapshot: the last report is kept with its age, and impossible reports are rejected."""

from __future__ import annotations

import msgspec
import pytest

from penstock.fleet.endpoint_report import MAX_ENDPOINTS, MAX_TEXT, EndpointCondition, EndpointReport
from penstock.fleet.report import AgentReport
from penstock.fleet.reported_endpoints import MAX_LIST_AGE_S, endpoints, omitted_endpoints
from penstock.fleet.snapshot import MAX_COUNT, ReportVerdict, Snapshot, add_report
from tests.support.reports import endpoint
from tests.unit.penstock.fleet.test_snapshot import POLICY, report


def reported(*rows: EndpointReport, agent: str = "1", seq: int = 1, epoch: int = 1, more: int = 0) -> AgentReport:
    return report(agent=agent, seq=seq, epoch=epoch, endpoints=rows, endpoints_omitted=more)


def snapshot_of(*reports: tuple[AgentReport, float]) -> Snapshot:
    snapshot = Snapshot()
    for agent_report, at in reports:
        snapshot, verdict = add_report(snapshot, agent_report, at, POLICY)
        assert verdict is ReportVerdict.ACCEPTED
    return snapshot


def shown(snapshot: Snapshot, now: float) -> list[tuple[str, str, float]]:
    return sorted(
        (reported_endpoint.report.name, reported_endpoint.agent, round(reported_endpoint.age_s, 3))
        for reported_endpoint in endpoints(snapshot, now)
    )


def test_the_last_report_stands_and_ages() -> None:
    snapshot = snapshot_of(
        (reported(endpoint("a"), endpoint("b"), more=2), 10.0), (report(seq=2), 11.0), (report(seq=3), 12.0)
    )
    assert shown(snapshot, 12.5) == [("a", "1", 2.5), ("b", "1", 2.5)]
    assert omitted_endpoints(snapshot) == 2
    after, _ = add_report(snapshot, reported(endpoint("b"), seq=4), 13.0, POLICY)
    assert shown(after, 13.0) == [("b", "1", 0.0)]
    assert omitted_endpoints(after) == 0
    # A restarted agent has not reported yet, and the report of its predecessor does not count.
    again, _ = add_report(after, report(epoch=2), 14.0, POLICY)
    assert shown(again, 14.0) == []


def test_of_several_agents_the_first_by_name_with_a_recent_report_counts() -> None:
    both = snapshot_of(
        (reported(endpoint("a"), endpoint("gone"), agent="1"), 10.0),
        (reported(endpoint("a"), endpoint("new"), agent="2"), 20.0),
    )
    assert shown(both, 21.0) == [("a", "1", 11.0), ("gone", "1", 11.0), ("new", "2", 1.0)]
    late = 10.0 + MAX_LIST_AGE_S + 1.0
    assert shown(both, late) == [("a", "2", late - 20.0), ("new", "2", late - 20.0)]
    # Without a recent report the last one is kept, and its age shows that.
    assert shown(both, late + 20.0) == [("a", "2", late), ("gone", "1", late + 10.0), ("new", "2", late)]


def test_of_one_region_alone() -> None:
    snapshot = snapshot_of(
        (reported(endpoint("a")), 1.0), (report("b", endpoints=(endpoint("x"),), endpoints_omitted=5), 1.0)
    )
    assert [reported_endpoint.report.name for reported_endpoint in endpoints(snapshot, 1.0, "b")] == ["x"]
    assert (omitted_endpoints(snapshot, "a"), omitted_endpoints(snapshot, "b"), omitted_endpoints(snapshot)) == (
        0,
        5,
        5,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * (MAX_TEXT + 1)},
        {"address": "x" * (MAX_TEXT + 1)},
        {"models": ("x" * (MAX_TEXT + 1),)},
        {"models": ("m",) * 65},
        {"slots": -1},
        {"in_flight": MAX_COUNT + 1},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    bad = reported(endpoint("a"), msgspec.structs.replace(endpoint("b"), **wrong))
    assert add_report(Snapshot(), bad, 1.0, POLICY) == (Snapshot(), ReportVerdict.IMPOSSIBLE)


def test_too_many_are_refused() -> None:
    rows = tuple(endpoint(str(n)) for n in range(MAX_ENDPOINTS + 1))
    assert add_report(Snapshot(), reported(*rows), 1.0, POLICY)[1] is ReportVerdict.IMPOSSIBLE
    assert add_report(Snapshot(), reported(more=-1), 1.0, POLICY)[1] is ReportVerdict.IMPOSSIBLE
    assert add_report(Snapshot(), reported(*rows[1:]), 1.0, POLICY)[1] is ReportVerdict.ACCEPTED


def test_a_report_without_endpoints_is_accepted() -> None:
    old = {"region": "a", "agent": "1", "epoch": 1, "seq": 1, "sent_at": 0.0}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=AgentReport).endpoints is None
    raw = msgspec.msgpack.encode(reported(endpoint("a", EndpointCondition.WARMING)))
    assert msgspec.msgpack.decode(raw, type=AgentReport).endpoints == (endpoint("a", EndpointCondition.WARMING),)
