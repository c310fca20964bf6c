"""Results of a live run: unanswered requests count, engines are used, and all systems get the same workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from lab.bench.bench_results import Machine
from lab.bench.live.bench_live_report import (
    Conditions,
    Contest,
    Demand,
    LiveResults,
    System,
    contest_of,
    contest_table,
    live_results,
    to_best,
)
from lab.bench.live.contest import NOT_SERVED_S, LiveRun, judge
from lab.bench.live.engine_use import EngineUse, use_of
from lab.bench.live.fleet import CLIENT_SITES, INSTANCES, MAX_NUM_SEQS, engines_of
from lab.bench.live.workloads import WORKLOADS, Draw, trace_workload
from lab.replay.outcome import Outcome, OutcomeKind
from lab.traces.trace import TraceError

NO_USE = EngineUse(0.0, 0.0)


def outcome(kind: OutcomeKind, e2e_s: float, code: str = "") -> Outcome:
    return Outcome(
        id="r",
        site="Hamburg",
        tenant="open",
        model="m",
        scheduled_s=1.0,
        started_s=1.001,
        sent_s=1.001,
        first_token_s=1.0 + e2e_s / 2 if kind is OutcomeKind.OK else None,
        end_s=1.0 + e2e_s,
        kind=kind,
        status=200 if kind is OutcomeKind.OK else 429,
        code=code,
        tries=(),
        region="",
        endpoint="",
        tokens=1,
    )


def run_of(e2e_s: float, refused: int = 0) -> LiveRun:
    served = [outcome(OutcomeKind.OK, e2e_s)] * (100 - refused)
    return judge([*served, *[outcome(OutcomeKind.REFUSED, 0.001, "saturated")] * refused], NO_USE, 1.0)


def test_times_are_those_of_the_modelled_hardware() -> None:
    run = judge([outcome(OutcomeKind.OK, 0.5)] * 10, NO_USE, time_scale=4.0)
    assert run.ttft is not None
    assert (run.ttft.p50_s, run.e2e.p50_s) == (1.0, 2.0)
    assert run.lag_p99_ms == pytest.approx(1.0, abs=0.1)


def test_the_time_per_token_is_of_those_after_the_first() -> None:
    served = msgspec.structs.replace(outcome(OutcomeKind.OK, 0.5), tokens=6)
    run = judge([served, outcome(OutcomeKind.OK, 0.5)], NO_USE, time_scale=4.0)
    assert run.tpot is not None
    assert run.tpot.p50_s == pytest.approx(0.25 / 5 * 4), "a response of one token has none"


def test_a_response_that_is_not_streamed_has_only_its_end() -> None:
    run = judge([outcome(OutcomeKind.OK, 0.5)], NO_USE, 1.0, streamed=False)
    assert (run.ttft, run.tpot, run.e2e.p50_s) == (None, None, 0.5)


def test_a_refused_request_counts_as_unanswered() -> None:
    run = run_of(0.5, refused=2)
    assert run.e2e.p50_s == 0.5
    assert run.e2e.p99_s is None
    assert run.e2e.mean_s == pytest.approx(0.98 * 0.5 + 0.02 * NOT_SERVED_S)
    assert (run.requests, run.ok, run.refused, run.codes) == (100, 98, 2, {"saturated": 2})


def test_even_engines_and_uneven_ones() -> None:
    even = use_of([[(4, 0), (4, 0)]] * 3, seats=8)
    assert (even.mean, even.imbalance) == (0.5, 0.0)
    uneven = use_of([[(8, 3), (0, 0)]] * 3, seats=8)
    assert uneven.mean == 0.5
    assert uneven.imbalance > 0.5


def test_without_samples_there_is_no_use() -> None:
    assert use_of([], seats=8) == NO_USE


DEMAND = Demand("multi-turn", "chats", {"h100-1": "h100"}, 6, 20.0, 16.0, 0.8, 1)


def contest_with(**e2e_s: Sequence[float]) -> Contest:
    """The results of a contest with these times of each balancer in each round."""
    return contest_of(DEMAND, {name: [run_of(time_s) for time_s in rounds] for name, rounds in e2e_s.items()}, {})


def results_of(*contests: Contest) -> LiveResults:
    conditions = Conditions(4.0, 48.0, 8.0, 1, 1)
    systems = [System("penstock", "1", ()), System("envoy", "1", ("<fast>",))]
    return live_results(Machine("", 2, "", 0.0, ""), conditions, systems, contests, {"nginx": "not installed"})


def test_each_figure_is_compared_with_the_best_of_the_others() -> None:
    contest = contest_with(penstock=[0.5], envoy=[0.4], haproxy=[0.8])
    compared = to_best(contest)["e2e_p99_s"]
    assert (compared.best_system, compared.best, compared.ratio) == ("envoy", 0.4, 1.25)
    found = results_of(contest)
    assert {loss.best_system for loss in found.losses} == {"envoy"}
    assert {goal.kept for goal in found.goals if goal.what.startswith("e2e")} == {False}
    assert contest_table(contest).row_count == 3


def test_a_contest_without_another_balancer_has_nothing_to_lose() -> None:
    found = results_of(contest_with(penstock=[0.5]))
    assert (found.losses, found.goals) == ([], [])


def test_a_round_without_a_quantile_leaves_none_for_all() -> None:
    runs = {"penstock": [run_of(0.5), run_of(0.7, refused=5)], "envoy": [run_of(0.5), run_of(0.5)]}
    contest = contest_of(DEMAND, runs, {})
    ours = contest.scores[0]
    assert ours.figures["e2e_p50_s"] == pytest.approx(0.6)
    assert ours.figures["e2e_p99_s"] is None
    assert ours.refused == 5
    assert results_of(contest).losses[0].ratio is None, "what is never answered is the worst loss"


def test_the_fleet_mixes_accelerators_with_like_seats() -> None:
    fleet = engines_of(2)
    assert len({engine.name for engine in fleet}) == 6
    assert {engine.accelerator for engine in fleet} == {"h100", "a100", "l40s"}
    assert {engine.max_num_seqs for engine in fleet} == {MAX_NUM_SEQS}


def test_the_workload_is_the_same_for_every_peer_and_has_the_requested_rate() -> None:
    workload = WORKLOADS["azure-conversation"]
    first, again = (workload.plan(Draw(20.0, 60.0, Path("absent"), Random(1)), 4.0) for _ in range(2))
    assert first == again
    assert first[-1].at_s <= 60.0 / 4.0
    assert len(first) == pytest.approx(20.0 * 60.0, rel=0.1)
    assert {request.site for request in first} == {site.name for site in CLIENT_SITES}
    assert len(CLIENT_SITES) == INSTANCES
    for site in CLIENT_SITES:
        assert sum(request.site == site.name for request in first) == pytest.approx(len(first) / INSTANCES, rel=0.2)


def test_a_trace_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    with pytest.raises(TraceError, match="lasts 4 s of 60 s"):
        trace_workload(trace).plan(Draw(20.0, 60.0, tmp_path, Random(1)), 4.0)
