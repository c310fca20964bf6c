"""The verdict: a good run passes all checks, and each defect fails exactly its own check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lab.demo.findings import NOTHING
from lab.demo.measure import Kind, failback_s, failover, kind_of
from lab.demo.records import Answer, Attempt, EventKind, Outcome, Run, Served, Sighting, TenantRequest
from lab.demo.scenario import ActName, PhaseName
from lab.demo.verdict import judge
from lab.planet.fleet_watch import Look
from tests.support.story_run import EU, REGIONS, change, change_image, in_phase, story_run, without

RUN = story_run()
KILLED_S = RUN.event(EventKind.REGION_KILLED).at_s
READY_S = RUN.event(EventKind.REGION_READY).at_s


def missed(run: Run) -> set[str]:
    return {check.name for check in judge(run) if not check.passed}


def replaced(run: Run, **fields: object) -> Run:
    return msgspec.structs.replace(run, **fields)


def each_served(run: Run, change_request: Callable[[object], object]) -> Run:
    return replaced(run, served=tuple(change_request(request) for request in run.served))


def test_a_good_run_passes_every_check() -> None:
    assert missed(RUN) == set()
    assert len(judge(RUN)) == 19


def test_a_run_in_which_nothing_happened_passes_no_check() -> None:
    empty = Run(RUN.scenario, (), (), frozenset(), (), (), RUN.failback_ramp_s)
    assert missed(empty) == {check.name for check in judge(RUN)}
    assert all(check.observed == 0 and check.says.startswith(NOTHING) for check in judge(empty))


@pytest.mark.parametrize(
    ("check", "happened"),
    [
        ("streams continue", lambda request: request.origin == "eu-de" or request.due_s > KILLED_S),
        ("end of spillover", lambda request: not in_surge_end(request)),
        ("ramped failback", lambda request: not READY_S <= request.due_s < READY_S + RUN.failback_ramp_s / 3),
        ("serving goes on", lambda request: request.due_s < RUN.scenario.act_at_s(ActName.KILL_REDIS)),
        ("failover", lambda request: not KILLED_S <= request.due_s < READY_S),
    ],
)
def test_a_promise_that_nothing_put_to_the_test_is_missed(check: str, happened: Callable[[Served], bool]) -> None:
    assert check in missed(replaced(RUN, served=tuple(filter(happened, RUN.served))))


def in_surge_end(request: Served) -> bool:
    surge = RUN.scenario.phase(PhaseName.SURGE)
    return surge.to_s - 6.0 <= request.due_s < surge.to_s


def test_one_request_at_a_forbidden_engine_is_a_violation() -> None:
    stray = Sighting("x", 20.0, "eu-gb", "eu-gb-0", EU)
    run = replaced(RUN, sightings=(*RUN.sightings, stray))
    assert missed(run) == {"residency"}
    assert "eu-gb" in judge(run)[0].says


def test_a_witness_that_missed_a_served_request_proves_nothing() -> None:
    assert missed(replaced(RUN, sightings=RUN.sightings[1:])) == {"residency"}


def test_a_run_without_confined_requests_proves_no_residency() -> None:
    free = tuple(msgspec.structs.replace(sighting, required=REGIONS) for sighting in RUN.sightings)
    assert "residency" in missed(replaced(RUN, sightings=free))


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REFUSED])
def test_an_image_job_that_was_not_answered_is_missed(outcome: Outcome) -> None:
    run = change_image(RUN, 5, outcome=outcome)
    assert missed(run) == {"image jobs"}


def test_an_image_job_whose_only_region_is_dead_may_be_refused() -> None:
    number = next(n for n, job in enumerate(RUN.images) if KILLED_S < job.request.due_s < READY_S)
    required = (RUN.scenario.lost_region,)
    assert missed(change_image(RUN, number, outcome=Outcome.REFUSED, required=required)) == set()
    assert missed(change_image(RUN, 0, outcome=Outcome.REFUSED, required=required)) == {"image jobs"}


def test_an_image_job_outside_its_residency_is_missed() -> None:
    stray = Sighting(RUN.images[0].request.id, 20.0, "eu-gb", "eu-gb-images", EU)
    assert missed(replaced(RUN, sightings=(*RUN.sightings, stray))) == {"residency", "image jobs"}


def test_an_image_job_that_was_accounted_at_another_size_is_missed() -> None:
    assert missed(change_image(RUN, 7, accounted=1.0)) == {"image jobs"}


def test_an_image_job_that_no_agent_logged_is_missed_unless_the_agent_was_killed() -> None:
    forgotten = tuple(msgspec.structs.replace(job, accounted_megapixel_steps=None) for job in RUN.images[:1])
    assert missed(replaced(RUN, images=(*forgotten, *RUN.images[1:]))) == {"image jobs"}
    entered = (Attempt(1.0, RUN.scenario.lost_region, Answer.SERVED),)
    killed = msgspec.structs.replace(
        forgotten[0], request=msgspec.structs.replace(forgotten[0].request, attempts=entered)
    )
    assert missed(replaced(RUN, images=(killed, *RUN.images[1:]))) == set()


def test_a_run_without_images_proves_nothing_about_them() -> None:
    assert missed(replaced(RUN, images=())) == {"image jobs"}


def changed_scene(**fields: Any) -> Run:
    assert RUN.tenants is not None
    return replaced(RUN, tenants=replace(RUN.tenants, **fields))


SCENE = RUN.tenants
assert SCENE is not None
FLOOD, BILLED = SCENE.of("flood"), SCENE.billed


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"requests": (*SCENE.requests, *(replace(FLOOD[0], id=f"more-{n}") for n in range(3)))}, "budget of a flood"),
        ({"requests": tuple(each for each in SCENE.requests if each not in FLOOD[:9])}, "budget of a flood"),
        ({"requests": (*SCENE.requests, replace(FLOOD[-1], detail="too many requests"))}, "budget of a flood"),
        ({"requests": (*SCENE.requests, TenantRequest("quiet", "", 429, 0.0))}, "a quiet tenant"),
        ({"stream_ended_at_s": None}, "a revoked key"),
        ({"stream_ended_at_s": SCENE.revoked_at_s + 1.1}, "a revoked key"),
        ({"status_after_revocation": 200}, "a revoked key"),
        ({"billed": BILLED[1:]}, "the bill"),
        ({"billed": (*BILLED, BILLED[0])}, "the bill"),
        ({"billed": (replace(BILLED[0], output_tokens=17), *BILLED[1:])}, "the bill"),
        ({"billed": (*BILLED, replace(BILLED[0], id="invented"))}, "the bill"),
    ],
)
def test_each_defect_of_the_scene_of_tenants_is_missed(fields: dict[str, Any], check: str) -> None:
    assert check in missed(changed_scene(**fields))
    assert missed(changed_scene(**fields)) <= {check, "the bill"}


def test_a_scene_that_did_not_end_proves_nothing() -> None:
    assert missed(replaced(RUN, tenants=None)) == {"budget of a flood", "a quiet tenant", "a revoked key", "the bill"}


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (0, {"output": RUN.batches[0].output[1:]}),
        (0, {"ran_in": {"jp-tok": 12}}),
        (0, {"output": (*RUN.batches[0].output, "line-0")}),
        (0, {"output": (*RUN.batches[0].output[1:], "line-13")}),
        (0, {"output": RUN.batches[0].output[1:], "errors": ("line-0",)}),
        (0, {"status": "in_progress"}),
        (0, {"outside": 1}),
        (1, {"engine_runs": (1, 3, 1, 1, 1, 1)}),
        (1, {"engine_runs": (1, 0, 1, 1, 1, 1)}),
        (1, {"done_before_loss": None}),
        (1, {"done_before_loss": 0}),
        (1, {"done_before_loss": 6}),
    ],
)
def test_each_defect_of_a_batch_is_missed(number: int, fields: dict[str, Any]) -> None:
    scenes = list(RUN.batches)
    scenes[number] = replace(scenes[number], **fields)
    assert missed(replaced(RUN, batches=tuple(scenes))) == {"batches"}


def test_a_batch_without_records_proves_nothing() -> None:
    assert missed(replaced(RUN, batches=RUN.batches[1:])) == {"batches"}
    assert missed(replaced(RUN, batches=())) == {"batches"}


def test_a_redirected_client_that_was_not_served_is_missed() -> None:
    number = next(n for n, request in enumerate(RUN.served) if request.attempts[0].answer is Answer.REDIRECTED)
    assert "forbidden entries" in missed(change(RUN, number, outcome=Outcome.REFUSED))


def test_steady_state_away_from_home_is_missed() -> None:
    run = RUN
    for number in in_phase(RUN, PhaseName.STEADY)[::10]:
        run = change(run, number, server="jp-tok")
    assert missed(run) == {"nearest permitted region"}


def test_a_refusal_in_steady_state_is_missed() -> None:
    number = in_phase(RUN, PhaseName.STEADY)[0]
    assert missed(change(RUN, number, outcome=Outcome.REFUSED)) == {"nearest permitted region"}


def test_a_surge_without_spillover_is_missed() -> None:
    run = RUN
    for number in in_phase(RUN, PhaseName.SURGE):
        run = change(run, number, server=run.served[number].home)
    assert missed(run) == {"spillover"}


def test_spillover_that_does_not_end_fails() -> None:
    run = RUN
    surge = RUN.scenario.phase(PhaseName.SURGE)
    for number in in_phase(RUN, PhaseName.SURGE):
        if run.served[number].home == "eu-de" and run.served[number].due_s > surge.to_s - 4.0:
            run = change(run, number, server="eu-es")
    assert missed(run) == {"end of spillover"}


@pytest.mark.parametrize(("seconds", "forgiven"), [(1, True), (2, False)])
def test_one_second_of_overflow_is_no_lasting_surge(seconds: int, forgiven: bool) -> None:
    run, surge = RUN, RUN.scenario.phase(PhaseName.SURGE)
    from_s = int(surge.to_s) - 3
    for number in in_phase(RUN, PhaseName.SURGE):
        request = run.served[number]
        if request.home == "eu-de" and from_s <= request.due_s < from_s + seconds:
            run = change(run, number, server="eu-es")
    assert (missed(run) == set()) == forgiven


@pytest.mark.parametrize("late_s", [1.01, 3.0])
def test_a_late_attempt_of_a_client_at_the_dead_region_is_missed(late_s: float) -> None:
    number = next(n for n, request in enumerate(RUN.served) if request.due_s > KILLED_S + late_s)
    at_s = KILLED_S + late_s
    attempts = (Attempt(at_s, "eu-de", Answer.BROKEN), *RUN.served[number].attempts)
    run = change(RUN, number, attempts=attempts)
    assert missed(run) == {"failover"}
    assert failover(run).rerouted_s == pytest.approx(late_s)


def test_a_late_attempt_of_an_agent_at_the_dead_region_is_missed() -> None:
    late = [Look(KILLED_S + at_s, retries={"us-east/a": count}) for at_s, count in ((1.9, 1), (2.0, 2))]
    assert missed(replaced(RUN, looks=(*RUN.looks, *late))) == {"failover"}


def test_an_undetected_loss_is_missed() -> None:
    assert "failover" in missed(replaced(RUN, looks=()))
    assert "failover" in missed(without(RUN, EventKind.REGION_KILLED))


def test_detection_is_the_first_report_of_the_failure_after_the_kill() -> None:
    measured = failover(RUN)
    assert measured.detected_s == pytest.approx(0.41)
    assert measured.all_detected_s == pytest.approx(0.55)
    assert measured.first_elsewhere_s is not None


def test_a_region_that_takes_everything_back_at_once_is_missed() -> None:
    def at_home(request):
        early = READY_S <= request.due_s < READY_S + 4.0 and request.home == "eu-de"
        return msgspec.structs.replace(request, server="eu-de") if early else request

    assert "ramped failback" in missed(each_served(RUN, at_home))


def test_a_region_that_never_gets_its_traffic_back_is_missed() -> None:
    def elsewhere(request):
        later = READY_S <= request.due_s < RUN.scenario.act_at_s(ActName.KILL_ETCD) and request.home == "eu-de"
        return msgspec.structs.replace(request, server="eu-es") if later else request

    run = each_served(RUN, elsewhere)
    assert failback_s(run) is None
    assert missed(run) == {"ramped failback"}
    assert "ramped failback" in missed(without(RUN, EventKind.REGION_READY))


def test_a_failure_that_no_engine_had_started_is_a_loss() -> None:
    number = next(n for n, request in enumerate(RUN.served) if request.due_s > KILLED_S)
    run = change(RUN, number, outcome=Outcome.FAILED, detail="connection reset")
    assert "no unexplained failure" in missed(run)
    run = replaced(run, started=run.started - {run.served[number].id})
    assert "nothing lost that had not started" in missed(run)


def test_what_was_running_in_the_killed_region_may_break() -> None:
    broken = [request for request in RUN.served if request.outcome is Outcome.FAILED]
    assert broken
    assert failover(RUN).broken_after_start == len(broken)
    assert failover(RUN).lost_not_started == 0


def test_a_stream_through_another_region_has_to_be_continued() -> None:
    number = next(n for n, request in enumerate(RUN.served) if request.due_s > KILLED_S)
    stream = msgspec.structs.replace(
        RUN.served[number],
        due_s=KILLED_S - 1.0,
        ttft_s=0.2,
        e2e_s=3.0,
        outcome=Outcome.OK,
        attempts=(Attempt(KILLED_S - 1.0, "eu-es", Answer.SERVED),),
    )
    sighting = Sighting(stream.id, KILLED_S - 0.9, RUN.scenario.lost_region, "gpu", stream.required)
    run = replaced(RUN, served=(*RUN.served, stream), sightings=(*RUN.sightings, sighting))
    assert (failover(run).continued, failover(run).not_continued) == (4, 0)
    broken = msgspec.structs.replace(stream, outcome=Outcome.FAILED, e2e_s=None)
    run = replaced(run, served=(*RUN.served, broken))
    assert (failover(run).continued, failover(run).not_continued) == (3, 1)
    assert "streams continue" in missed(run)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REFUSED])
def test_an_unserved_request_while_the_control_plane_is_dead_is_missed(outcome: Outcome) -> None:
    number = in_phase(RUN, PhaseName.CONTROL_LOSS)[-1]
    assert "serving goes on" in missed(change(RUN, number, outcome=outcome))


@pytest.mark.parametrize("kind", [EventKind.LEADER_KILLED, EventKind.ETCD_KILLED, EventKind.REDIS_KILLED])
def test_service_without_a_kill_proves_nothing(kind: EventKind) -> None:
    assert "serving goes on" in missed(without(RUN, kind))


def test_no_new_leader_is_missed() -> None:
    assert missed(without(RUN, EventKind.NEW_LEADER)) == {"a new leader"}


def test_the_kind_of_each_failure_follows_from_the_injected_faults() -> None:
    for request in RUN.served:
        kind = kind_of(RUN, request) if request.outcome is Outcome.OK else Kind.HOME
        if kind is Kind.FAILOVER:
            assert request.home == "eu-de"
            assert KILLED_S - 10 < request.due_s < READY_S
        if kind is Kind.FAILBACK:
            assert request.home == "eu-de"
            assert request.due_s >= READY_S
        if request.outcome is Outcome.OK:
            assert (kind is Kind.HOME) == (request.server == request.home)
