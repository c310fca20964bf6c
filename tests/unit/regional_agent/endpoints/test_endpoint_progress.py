"""Endpoints whose requests make no progress, on a clock of the test."""

from random import Random

import pytest

from penstock.fleet.endpoint_report import EndpointCondition
from penstock.health.endpoint_health import EndpointState, ProbeOutcome
from penstock.health.engines.engine_signals import Signal
from penstock.health.outlier_ejection import AttemptOutcome, EjectionRules, EjectionState
from penstock.health.progress import IDLE_READINGS, AwaitedResponse, StallReason
from penstock.routing.reasons import Reason
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_failures import apply_outcome
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.endpoints.endpoint_progress import MAX_LATE_S, ProgressMonitor
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.telemetry.by_endpoint.endpoint_reports import endpoint_report
from regional_agent.upstream.address import Address

RULES = EjectionRules(base_s=5.0, suspect_after_s=10.0)
EXPECTED_S = 0.5
TICK_S = 0.2


class Region:
    """Endpoints of one model, and requests that wait for them."""

    def __init__(self, size: int) -> None:
        self.now = 1000.0
        self.evidence: list[StallReason] = []
        self.waiting: dict[int, float] = {}
        """When the request was sent that waits at an endpoint, by its index."""
        detection = OutlierDetection(RULES, 0.0, lambda: self.now, Random(1))
        self.endpoints = [
            Endpoint(EndpointSpec(f"gpu-{n}", Address("127.0.0.1", 1 + n), ("m",), 4), detection) for n in range(size)
        ]
        self.pool = EndpointPool(rules=RULES)
        for endpoint in self.endpoints:
            endpoint.pools = (self.pool,)
        self.pool.fill(self.endpoints)
        for endpoint in self.endpoints:
            endpoint.probed(ProbeOutcome.GOOD)
        self.monitor = ProgressMonitor(lambda model: self.pool.endpoints, RULES.suspect_after_s, self.evidence.append)

    def run(self, seconds: float) -> None:
        """Let time pass, in ticks."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.tick()

    def tick(self) -> None:
        for index, sent_at in self.waiting.items():
            self.endpoints[index].progress.waits(AwaitedResponse(sent_at, EXPECTED_S), self.now)
        for endpoint in self.endpoints:
            endpoint.tick()
        self.monitor.check(self.endpoints, self.now)
        self.pool.update_readiness()

    def states(self) -> list[EjectionState]:
        return [endpoint.ejection.state for endpoint in self.endpoints]


@pytest.fixture
def region() -> Region:
    return Region(3)


NONE, SUSPECT = EjectionState.NONE, EjectionState.SUSPECT


def test_a_silent_endpoint_receives_no_requests_and_its_waiting_ones_may_leave(region: Region) -> None:
    region.waiting[0] = region.now
    region.run(9.0)
    assert region.states() == [NONE, NONE, NONE]
    region.run(2.0)
    first = region.endpoints[0]
    assert (region.states(), region.evidence) == ([SUSPECT, NONE, NONE], [StallReason.SILENT])
    assert [view.ready for view in region.pool.views] == [False, True, True]
    assert first.stall_at(region.waiting[0]) is first.stall is not None
    assert first.stall_at(region.now) is None, "sent to it since, in panic mode"
    assert endpoint_report(first).condition is EndpointCondition.SUSPECT
    assert "nothing has arrived" in endpoint_status(first, None)["suspect_because"]
    assert first.view.unready_reason is Reason.ENDPOINT_SUSPECT
    for _ in range(5):
        first.probed(ProbeOutcome.UNREADY)
    assert first.view.unready_reason is Reason.ENDPOINT_NOT_READY


@pytest.mark.parametrize(
    ("outcome", "is_suspect"),
    [(ProbeOutcome.UNREACHABLE, True), (ProbeOutcome.SLOW, True), (ProbeOutcome.UNREADY, False)],
)
def test_what_waits_at_an_endpoint_that_answers_no_probe_may_leave_whatever_is_known_of_it(
    outcome: ProbeOutcome, is_suspect: bool
) -> None:
    region = Region(1)
    (lost,) = region.endpoints
    for _ in range(4):
        lost.probed(outcome)
    assert lost.health.state is EndpointState.DOWN
    region.waiting[0] = region.now
    region.run(4.0)
    assert region.states() == [NONE]
    region.run(1.5)
    assert region.evidence == [StallReason.UNANSWERED] * is_suspect
    assert (lost.stall_at(region.waiting[0]) is not None) is is_suspect


def test_a_stream_that_arrives_stays_at_an_endpoint_that_answers_no_probe() -> None:
    region = Region(1)
    (busy,) = region.endpoints
    for _ in range(4):
        busy.probed(ProbeOutcome.SLOW)
    region.waiting[0] = region.now
    for _ in range(10):
        region.run(4.0)
        busy.progress.progressed_at = region.now
    assert (region.states(), region.evidence) == ([NONE], [])


def test_an_engine_that_reports_to_run_nothing_is_suspect_sooner(region: Region) -> None:
    first = region.endpoints[0]
    first.update_signals({Signal.RUNNING: 1.0})
    region.waiting[0] = region.now
    for _ in range(IDLE_READINGS):
        region.run(1.0)
        first.update_signals({Signal.RUNNING: 0.0, Signal.QUEUED: 0.0})
    region.run(TICK_S)
    assert (region.states()[0], region.evidence) == (SUSPECT, [StallReason.IDLE])


def test_utilisation_alone_is_no_evidence_of_idleness(region: Region) -> None:
    first = region.endpoints[0]
    first.update_signals({Signal.RUNNING: 1.0})
    region.waiting[0] = region.now
    for _ in range(IDLE_READINGS):
        region.run(1.0)
        first.update_signals({Signal.UTILISATION: 0.0})
    region.run(TICK_S)
    assert region.states()[0] is NONE


def test_it_returns_by_a_trial_at_once_when_an_older_request_progresses(region: Region) -> None:
    region.waiting[0] = region.now
    region.run(11.0)
    first = region.endpoints[0]
    region.now += 0.1
    first.progress.progressed_at = region.now
    region.waiting.clear()
    region.tick()
    assert (first.ejection.state, first.view.ready) == (EjectionState.TRIAL, True)
    first.take()
    first.sent_while_ejected()
    assert not first.view.ready
    first.give_back()
    apply_outcome(first, AttemptOutcome.SERVED, region.now)
    assert (region.states(), region.pool.ejected) == ([NONE] * 3, 0)


def test_a_stall_of_all_makes_none_suspect(region: Region) -> None:
    region.waiting.update({0: region.now, 1: region.now, 2: region.now})
    region.run(60.0)
    assert region.states() == [NONE] * 3
    assert region.evidence == []


def test_no_more_are_suspect_than_may_be_ejected(region: Region) -> None:
    region.waiting.update({0: region.now, 1: region.now})
    region.run(12.0)
    assert sorted(region.states()) == [NONE, NONE, SUSPECT]


def test_a_sibling_that_is_down_is_no_sibling() -> None:
    region = Region(2)
    for _ in range(2):
        region.endpoints[1].probed(ProbeOutcome.UNREACHABLE)
    region.waiting[0] = region.now
    region.run(30.0)
    assert region.states()[0] is NONE


def test_an_agent_that_was_stopped_itself_blames_no_endpoint(region: Region) -> None:
    region.run(1.0)
    region.waiting[0] = region.now
    region.now += 60.0 + MAX_LATE_S
    region.tick()
    region.run(9.0)
    assert region.states() == [NONE] * 3
    region.run(2.0)
    assert region.states()[0] is SUSPECT
