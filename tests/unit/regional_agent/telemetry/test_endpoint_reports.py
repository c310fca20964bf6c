"""Endpoints in reports: the state of each within bounds, and longer intervals for many endpoints."""

from __future__ import annotations

import msgspec
import pytest

from penstock.fleet.endpoint_report import MAX_ENDPOINTS, MAX_TEXT, EndpointCondition
from penstock.fleet.report import PoolReport
from penstock.fleet.snapshot import ReportVerdict, Snapshot, add_report
from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.engines.engine_facts import EngineFacts, ServedModel
from penstock.health.outlier_ejection import AttemptOutcome, Ejection, EjectionState
from regional_agent.endpoints import endpoint_fields, endpoint_file
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.telemetry.by_endpoint import endpoint_reports
from regional_agent.telemetry.by_endpoint.endpoint_reports import (
    MAX_LIST_BYTES,
    PER_REPORT,
    EndpointReports,
    endpoint_report,
)
from regional_agent.upstream.address import Address
from tests.support.clocks import SetClock
from tests.unit.penstock.fleet.test_snapshot import POLICY, report


def some(count: int, *, models: tuple[str, ...] = ("m",), clock: SetClock | None = None) -> list[Endpoint]:
    judge = OutlierDetection(warm_up_s=10.0, clock=clock or SetClock())
    members = [
        Endpoint(EndpointSpec(f"gpu-{n}", Address("10.0.0.1", 8000 + n, tls=True), models, 4, zone="z"), judge)
        for n in range(count)
    ]
    EndpointPool().fill(members)
    return members


def test_condition_of_each_endpoint_state() -> None:
    clock = SetClock()
    (endpoint,) = some(1, clock=clock)

    def word() -> EndpointCondition:
        return endpoint_report(endpoint).condition

    assert word() is EndpointCondition.NEW
    endpoint.probed(ProbeOutcome.GOOD)
    endpoint.tick()
    assert word() is EndpointCondition.WARMING
    clock.now += 10.0
    endpoint.tick()
    assert word() is EndpointCondition.READY
    endpoint.set_loaded_models(frozenset())
    assert word() is EndpointCondition.UNLOADED
    endpoint.set_loaded_models(None)
    for trust in (EjectionState.EJECTED, EjectionState.TRIAL, EjectionState.TRIAL_RUNNING):
        endpoint.ejection = Ejection(trust)
        assert word() is EndpointCondition.EJECTED
    for _ in range(2):
        endpoint.probed(ProbeOutcome.UNREACHABLE)
    assert word() is EndpointCondition.DOWN
    endpoint.drain()
    assert word() is EndpointCondition.DRAINING


def test_reports_load_and_zone() -> None:
    (endpoint,) = some(1)
    endpoint.take()
    row = endpoint_report(endpoint)
    assert (row.name, row.address, row.models, row.zone, row.accelerator) == ("gpu-0", "10.0.0.1:8000", ("m",), "z", "")
    assert (row.slots, row.in_flight) == (4, 1)


def test_reports_only_host_and_port_of_a_url() -> None:
    address = Address.parse("https://user:secret@engine.internal:8443/v1?token=secret")
    endpoint = Endpoint(EndpointSpec("gpu", address, ("m",), 1), OutlierDetection())
    assert endpoint_report(endpoint).address == "engine.internal:8443"
    assert b"secret" not in msgspec.msgpack.encode(endpoint_report(endpoint))


def test_an_endpoint_whose_engine_reports_the_impossible_does_not_cost_the_report_of_the_region() -> None:
    members = some(3)
    members[1].reported.facts = EngineFacts("0.1", (ServedModel("x" * (MAX_TEXT + 1)),))
    page = EndpointReports(lambda: members).next()
    assert page.endpoints is not None
    assert [row.name for row in page.endpoints] == ["gpu-0", "gpu-2"]
    assert page.omitted == 1
    sent = report("a", endpoints=page.endpoints, endpoints_omitted=page.omitted)
    assert add_report(Snapshot(), sent, 1.0, POLICY)[1] is ReportVerdict.ACCEPTED


def test_the_largest_endpoints_of_a_region_are_possible_in_a_report() -> None:
    slots = endpoint_file.MAX_ENDPOINTS * endpoint_fields.MAX_REQUESTS
    pool = PoolReport("m", endpoint_file.MAX_ENDPOINTS, endpoint_file.MAX_ENDPOINTS, slots, 2 * slots, 1.0)
    sent = msgspec.structs.replace(report("a"), pools=(pool,))
    assert add_report(Snapshot(), sent, 1.0, POLICY)[1] is ReportVerdict.ACCEPTED


@pytest.mark.parametrize(("count", "every"), [(0, 1), (1, 1), (PER_REPORT, 1), (PER_REPORT + 1, 2), (950, 10)])
def test_longer_lists_are_sent_less_often(count: int, every: int) -> None:
    members = some(count)
    reports = EndpointReports(lambda: members)
    reported = [reports.next().endpoints for _ in range(3 * every)]
    assert [index for index, endpoints in enumerate(reported) if endpoints is not None] == [0, every, 2 * every]
    assert reported[0] is not None
    assert len(reported[0]) == count


def test_limits_the_number_of_endpoints_in_a_list() -> None:
    members = some(MAX_ENDPOINTS + 7)
    reported = EndpointReports(lambda: members).next()
    assert reported.endpoints is not None
    assert (len(reported.endpoints), reported.omitted) == (MAX_ENDPOINTS, 7)


def test_limits_the_bytes_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    members = some(40, models=tuple(f"{n:03}" + "m" * 200 for n in range(60)))
    reported = EndpointReports(lambda: members).next()
    assert reported.endpoints is not None
    assert len(msgspec.msgpack.encode(reported.endpoints)) <= MAX_LIST_BYTES + 8
    assert 0 < len(reported.endpoints) == 40 - reported.omitted
    monkeypatch.setattr(endpoint_reports, "MAX_LIST_BYTES", 10)
    assert EndpointReports(lambda: members).next().endpoints == ()


def test_reports_why_an_endpoint_is_not_ready() -> None:
    clock = SetClock()
    (endpoint,) = some(1, clock=clock)
    assert endpoint_report(endpoint).reason == "no good health probe since its start or failure"
    endpoint.probe_failure = "it answers the health probe with 503"
    endpoint.probed(ProbeOutcome.UNREADY)
    assert endpoint_report(endpoint).reason == "it answers the health probe with 503"
    endpoint.probed(ProbeOutcome.UNREADY)
    row = endpoint_report(endpoint)
    assert (row.condition, row.reason) == (EndpointCondition.DOWN, "it answers the health probe with 503")
    endpoint.probed(ProbeOutcome.GOOD)
    endpoint.probed(ProbeOutcome.GOOD)
    endpoint.tick()
    assert "of a full share" in endpoint_report(endpoint).reason
    clock.now += 10.0
    endpoint.tick()
    assert endpoint_report(endpoint).reason == ""
    endpoint.ejection = Ejection(EjectionState.EJECTED, ejections=2, until=clock.now + 12.0)
    endpoint.ejected_by = AttemptOutcome.SERVER_ERROR
    reason = endpoint_report(endpoint).reason
    assert reason == "requests failed (last: server_error); 2 ejections in a row, a trial request in 12 s"
