"""What counters of several agents come to since they were marked: all agents, and restarted ones in full."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.counts.version_counts import VersionCounts
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.rollout.canary_analysis import AgentObservation, objectives_since, requests_since
from penstock.rollout.model_rollout import VersionMark, begin
from penstock.rollout.objective_analysis import ObjectiveCounts, merge_counts
from penstock.rollout.policy_rollout import Mark
from penstock.rollout.version_analysis import VersionEvidence, compared


def objective(answers: int, within: int, model: str = "m") -> ObjectiveCounts:
    return ObjectiveCounts(model, 1.0, 0.9, answers, within)


def observed(epoch: int, counts: RequestCounts, *objectives: ObjectiveCounts) -> AgentObservation:
    return AgentObservation("eu", epoch, "digest", "", "", counts, objectives)


MARKS = {name: Mark(1, RequestCounts(100, 10, 80, 40.0, 30.0), (objective(50, 40),)) for name in ("a", "b", "gone")}
AGENTS = {
    "a": observed(1, RequestCounts(130, 11, 100, 50.0, 36.0), objective(60, 47)),
    "b": observed(2, RequestCounts(120, 7, 9, 4.0, 2.0), objective(70, 66), objective(3, 2, "n")),
    "new": observed(1, RequestCounts(1000, 1000)),
}


def test_requests_since_the_marks_are_those_of_all_marked_agents() -> None:
    assert requests_since(MARKS, AGENTS) == RequestCounts(30 + 120, 1 + 7, 20 + 9, 10.0 + 4.0, 6.0 + 2.0)
    assert requests_since(None, AGENTS) == RequestCounts()


def test_objectives_since_the_marks_are_those_of_all_marked_agents() -> None:
    assert merge_counts(objectives_since(MARKS, AGENTS)) == {
        objective(0, 0).wanted: objective(10 + 70, 7 + 66),
        objective(0, 0, "n").wanted: objective(3, 2, "n"),
    }


@pytest.mark.parametrize(
    ("answers", "missed", "is_broken"),
    [
        # 10 of 100 may be late, and three standard deviations of 3 more.
        (100, 18, False),
        (100, 20, True),
        (10_000, 1_085, False),
        (10_000, 1_095, True),
        # Fewer than five late answers decide nothing.
        (4, 4, False),
        (5, 5, True),
    ],
)
def test_an_objective_is_broken_by_more_than_three_deviations(answers: int, missed: int, is_broken: bool) -> None:
    assert objective(answers, answers - missed).is_broken is is_broken


@pytest.mark.parametrize(("within", "is_worse"), [(920, False), (930, True)])
def test_two_deviations_are_worse(within: int, is_worse: bool) -> None:
    """Of 90 % and 93 % of 1,000 answers each, the difference deviates by 1.25 points."""
    assert objective(1000, 900).is_worse_than(objective(1000, within)) is is_worse
    assert not objective(1000, within).is_worse_than(objective(1000, 900))


def versions(old: int, new: int, epoch: int = 1) -> VersionMark:
    return VersionMark(epoch, VersionCounts(RequestCounts(old, old // 10)), VersionCounts(RequestCounts(new)))


def test_versions_are_compared_by_all_marked_agents() -> None:
    state = replace(
        begin(ModelRollout("chat", "v2", (10.0, 100.0)), "v1", 0.0, 0.0),
        marks={name: versions(100, 20) for name in ("a", "b", "c", "gone")},
    )
    agents = {
        "a": versions(150, 25),
        "b": versions(90, 7, epoch=2),
        "c": versions(170, 19),
        "new": versions(9000, 9000),
    }
    found = compared(state, VersionEvidence(agents))
    # Of `b` and `c`, which began again, all counts.
    assert (found.old.requests.ended, found.new.requests.ended) == (50 + 90 + 170, 5 + 7 + 19)
    assert found.old.requests.failed == 5 + 9 + 17
