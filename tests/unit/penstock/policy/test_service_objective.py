"""Service objectives from the count of a response to the status: misses, the recent window, the reports."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.status.objective_status import ObjectiveStatus, objective_statuses
from control_plane.status.status_builder import region_statuses
from penstock.accounts.outcome_rules import Outcome
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import FADED_S, ReportVerdict, Snapshot, add_report
from penstock.meters.objective_tally import STEP_S, WINDOW_S
from penstock.meters.request_tally import RequestTally
from penstock.policy.kinds.models import Model
from penstock.policy.policy_diff import diff
from penstock.policy.service_objective import (
    Measure,
    ObjectiveReport,
    ServiceObjective,
    objective_id,
    parse_objective_id,
    within_text,
)
from penstock.rollout.canary_analysis import observations
from penstock.rollout.objective_analysis import ObjectiveCounts
from regional_agent.telemetry.agent_metrics import AgentMetrics
from tests.support import planet
from tests.support.agent_state import state_sample

SOON = ServiceObjective(1.0, 0.9)


def models(objective: ServiceObjective | None) -> dict[str, Model]:
    return {"m": Model("m") if objective is None else Model("m", service_objective=objective), "other": Model("other")}


def tally(objective: ServiceObjective | None = SOON) -> RequestTally:
    made = RequestTally()
    made.use_objectives(models(objective))
    return made


def reported_counts(tally: RequestTally, now: float = 0.0) -> list[tuple[int, int]]:
    return [(objective_report.answers, objective_report.within) for objective_report in tally.report_objectives(now)]


def test_late_and_failed_answers_miss_and_what_clients_leave_or_get_wrong_does_not_count() -> None:
    counted = tally()
    for outcome, first_byte_s in (
        (Outcome.OK, 0.5),
        (Outcome.OK, 1.0),
        (Outcome.OK, 1.1),
        (Outcome.OK, None),
        (Outcome.ENGINE_ERROR, 0.1),
        (Outcome.REFUSED, None),
        (Outcome.TIMED_OUT, None),
        (Outcome.CLIENT_LEFT, 0.1),
        (Outcome.CLIENT_LEFT, None),
        (Outcome.EXPIRED, 1.5),
        (Outcome.EXPIRED, 0.5),
        (Outcome.REVOKED, None),
        (Outcome.CLIENT_ERROR, 0.1),
    ):
        counted.ended("m", outcome, first_byte_s, 2.0, streaming=True)
        counted.ended("other", outcome, first_byte_s, 2.0, streaming=True)
    assert counted.report_objectives(0.0) == (ObjectiveReport("m", 1.0, 0.9, 8, 2, answers_ever=8, within_ever=2),)
    assert reported_counts(tally(None)) == []


def test_the_recent_window_drops_what_is_older_by_more_than_a_step() -> None:
    counted = tally()
    counted.ended("m", Outcome.OK, 2.0, 2.0, streaming=True)
    seen = []
    for second in range(int(WINDOW_S + 3 * STEP_S)):
        if second == STEP_S:
            counted.ended("m", Outcome.OK, 0.5, 2.0, streaming=True)
        seen.append(reported_counts(counted, float(second)))
    assert seen[0] == [(1, 0)], "what came before the first look counts"
    assert seen[int(STEP_S)] == seen[int(WINDOW_S) - 1] == [(2, 1)]
    assert seen[int(WINDOW_S)] == [(1, 1)]
    assert seen[-1] == [(0, 0)]
    (objective_report,) = counted.report_objectives(2 * WINDOW_S)
    assert (objective_report.answers_ever, objective_report.within_ever) == (2, 1)


def test_counts_continue_under_an_equal_objective_and_restart_under_another() -> None:
    counted = tally()
    counted.ended("m", Outcome.OK, 0.5, 2.0, streaming=True)
    counted.use_objectives(models(SOON))
    assert reported_counts(counted) == [(1, 1)]
    counted.use_objectives(models(ServiceObjective(0.2, 0.9)))
    assert reported_counts(counted) == [(0, 0)]
    counted.use_objectives(models(None))
    assert reported_counts(counted) == []


def test_metrics_cover_models_with_an_objective_only() -> None:
    counted, metrics = tally(), AgentMetrics()
    counted.ended("m", Outcome.OK, 0.5, 2.0, streaming=True)
    counted.ended("m", Outcome.TIMED_OUT, None, 2.0, streaming=True)
    metrics.use_state(state_sample(tally=counted), {})
    page = metrics.render().decode()
    for line in (
        'penstock_agent_slo_requests_total{measure="first_byte",met="true",model="m"} 1.0',
        'penstock_agent_slo_requests_total{measure="first_byte",met="false",model="m"} 1.0',
        'penstock_agent_slo_target_ratio{measure="first_byte",model="m"} 0.9',
    ):
        assert line in page.splitlines()
    assert '"other"' not in page
    counted.use_objectives(models(None))
    metrics.use_state(state_sample(tally=counted), {})
    assert 'model="m"' not in metrics.render().decode()


POLICY = planet.policy()


def reported(*agents: tuple[str, str, float, ObjectiveReport]) -> Snapshot:
    snapshot = Snapshot()
    for region, agent, at, objective_report in agents:
        snapshot, verdict = add_report(
            snapshot, AgentReport(region, agent, 1, 1, 0.0, objectives=(objective_report,)), at, POLICY
        )
        assert verdict is ReportVerdict.ACCEPTED
    return snapshot


def test_a_region_sums_its_agents_and_the_fleet_its_regions() -> None:
    now = 2 * FADED_S
    snapshot = reported(
        ("eu-de", "one", now, ObjectiveReport("m", 1.0, 0.9, 90, 90)),
        ("eu-de", "two", now, ObjectiveReport("m", 1.0, 0.9, 10, 0)),
        ("eu-es", "one", now, ObjectiveReport("m", 1.0, 0.9, 20, 17)),
        ("us-east", "one", 0.0, ObjectiveReport("m", 1.0, 0.9, 1000, 0)),
        ("us-east", "two", now, ObjectiveReport("m", 1.0, 0.9, 0, 0)),
    )
    regions = {status.name: status.objectives for status in region_statuses(POLICY, snapshot, now)}
    assert regions == {
        "eu-de": (ObjectiveStatus("m", 1.0, 0.9, 100, 90, 0.9, True),),
        "eu-es": (ObjectiveStatus("m", 1.0, 0.9, 20, 17, 0.85, False),),
        "us-east": (ObjectiveStatus("m", 1.0, 0.9, 0, 0, None, None),),
    }
    (whole,) = objective_statuses(status for statuses in regions.values() for status in statuses)
    assert (whole.answers, whole.within, whole.is_met) == (120, 107, False)


def test_regions_under_different_policies_are_not_put_together() -> None:
    kept = [ObjectiveReport("m", 1.0, 0.9, 10, 10), ObjectiveReport("m", 2.0, 0.9, 10, 0)]
    assert [status.is_met for status in objective_statuses(kept)] == [True, False]


@pytest.mark.parametrize(
    "objective_report",
    [
        ObjectiveReport("m", 1.0, 0.9, 1, 2),
        ObjectiveReport("m", 1.0, 0.9, 1, -1),
        ObjectiveReport("m", 1.0, 0.9, 1, 1, answers_ever=1, within_ever=2),
        ObjectiveReport("m", 1.0, 1.0, 1, 1),
        ObjectiveReport("m", 1.0, float("nan"), 1, 1),
        ObjectiveReport("m", float("inf"), 0.9, 1, 1),
    ],
)
def test_a_report_that_cannot_be_is_refused(objective_report: ObjectiveReport) -> None:
    report = AgentReport("eu-de", "one", 1, 1, 0.0, objectives=(objective_report,))
    assert add_report(Snapshot(), report, 0.0, POLICY)[1] is ReportVerdict.IMPOSSIBLE


def test_a_rollout_is_judged_by_what_an_agent_counted_since_it_began() -> None:
    counted = tally()
    for first_byte_s in (0.5, 2.0):
        counted.ended("m", Outcome.OK, first_byte_s, 2.0, streaming=True)
    counted.report_objectives(0.0)
    later = counted.report_objectives(2 * WINDOW_S)
    seen = observations(reported(("eu-de", "one", 0.0, later[0])), 0.0)
    assert seen["eu-de/one"].objectives == (ObjectiveCounts("m", 1.0, 0.9, 2, 1),)


def test_a_diff_names_objectives_that_come_change_and_go() -> None:
    none, soon, later = (
        msgspec.structs.replace(POLICY, models=models(objective))
        for objective in (None, SOON, ServiceObjective(2.0, 0.9))
    )
    assert [str(change) for change in diff(none, soon)] == [
        'Model m service_objective: nothing -> {"first_byte_s":1.0,"share":0.9}'
    ]
    assert [str(change) for change in diff(soon, later)] == ["Model m service_objective.first_byte_s: 1.0 -> 2.0"]
    assert [change.how for change in diff(later, none)] == ["removed"]


def test_whole_answers_have_an_objective_of_their_own() -> None:
    both = ServiceObjective(1.0, 0.9, 10.0)
    counted = RequestTally()
    counted.use_objectives(models(both))
    counted.ended("m", Outcome.OK, 8.0, 8.0, streaming=False)
    counted.ended("m", Outcome.OK, 0.5, 11.0, streaming=False)
    counted.ended("m", Outcome.OK, 0.5, 60.0, streaming=True)
    counted.ended("m", Outcome.ENGINE_ERROR, None, 0.1, streaming=False)
    counted.ended("m", Outcome.CLIENT_LEFT, None, 5.0, streaming=False)
    counted.ended("m", Outcome.CLIENT_LEFT, None, 50.0, streaming=False)
    streams, whole = counted.report_objectives(0.0)
    assert (streams.measure, streams.answers, streams.within) == (Measure.FIRST_BYTE, 1, 1)
    assert (whole.measure, whole.limit_s, whole.answers, whole.within) == (Measure.TOTAL, 10.0, 4, 1)
    assert counted.report().begun == 1, "the first byte of an answer that is not streamed is that of its end"
    counted.use_objectives(models(ServiceObjective(None, 0.9, 10.0)))
    (kept,) = counted.report_objectives(0.0)
    assert (kept.measure, kept.answers) == (Measure.TOTAL, 4)
    counted.ended("m", Outcome.OK, 5.0, 5.0, streaming=True)
    assert counted.report_objectives(0.0)[0].answers == 4


def test_reports_of_earlier_agents_count_streams() -> None:
    earlier = b'{"model":"m","first_byte_s":1.0,"share":0.9,"answers":2,"within":1}'
    report = msgspec.json.decode(earlier, type=ObjectiveReport)
    assert report == ObjectiveReport("m", 1.0, 0.9, 2, 1)
    assert report.wanted == ("m", 1.0, 0.9, Measure.FIRST_BYTE)


def test_the_text_of_an_objective_in_records_is_read_back() -> None:
    assert objective_id(Measure.FIRST_BYTE, 1.5, 0.999_95) == "first_byte 1.5 0.99995"
    for objective in ((Measure.FIRST_BYTE, 1.5, 0.99), (Measure.TOTAL, 60.0, 0.999_999_9)):
        assert parse_objective_id(objective_id(*objective)) == objective
    for text in ("first_byte 1.5", "first 1.5 0.9", "total x 0.9", ""):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_objective_id(text)


def test_what_responses_within_an_objective_do() -> None:
    assert within_text(1.50, Measure.FIRST_BYTE) == "begin within 1.5 s"
    assert within_text(60.0, Measure.TOTAL) == "are complete within 60 s"
