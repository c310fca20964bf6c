"""What is made of a live run: who was never answered counts, engines' use, and one workload for everybody."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lab.bench.bench_results import Machine
from lab.bench.live.bench_live_report import Conditions, balancer, live_results, live_table
from lab.bench.live.contest import LiveRun, judge
from lab.bench.live.engine_use import EngineUse, use_of
from lab.bench.live.fleet import CLIENT_SITES, INSTANCES, MAX_NUM_SEQS, engines_of, workload_of
from lab.replay.outcome import Outcome, OutcomeKind
from lab.traces.trace import TraceError

NO_USE = EngineUse(0.0, 0.0, 0.0, 0.0)


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
    assert (run.ttft.p50_s, run.e2e.p50_s) == (1.0, 2.0)
    assert run.lag_p99_ms == pytest.approx(1.0, abs=0.1)


def test_who_is_refused_counts_as_never_answered() -> None:
    run = run_of(0.5, refused=2)
    assert run.e2e.p50_s == 0.5
    assert run.e2e.p99_s is None
    assert (run.requests, run.ok, run.refused, run.codes) == (100, 98, 2, {"saturated": 2})


def test_even_engines_and_uneven_ones() -> None:
    even = use_of([[(4, 0), (4, 0)]] * 3, seats=8)
    assert (even.mean, even.imbalance, even.deviation_between_engines, even.waiting) == (0.5, 0.0, 0.0, 0.0)
    uneven = use_of([[(8, 3), (0, 0)]] * 3, seats=8)
    assert uneven.mean == 0.5
    assert uneven.imbalance > 0.5
    assert uneven.deviation_between_engines == 0.5
    assert uneven.waiting == 3.0, "they waited although eight seats were free"


def test_waiting_where_nothing_is_free_is_not_needless() -> None:
    assert use_of([[(8, 5), (8, 0)]], seats=8).waiting == 0.0
    assert use_of([], seats=8) == NO_USE


def results_of(**e2e_s: float) -> dict[str, bool | None]:
    conditions = Conditions("generated", {}, MAX_NUM_SEQS, 4.0, 10.0, 10.0, 1.0, 1)
    balancers = [
        balancer(name, "1", (), instances, [run_of(p99_s)]) for name, p99_s in e2e_s.items() for instances in (1, 3)
    ]
    found = live_results(Machine("", 2, "", 0.0, ""), conditions, balancers, {})
    assert live_table(found).row_count == len(balancers)
    return {f"{one.limit}": one.kept for one in found.goals}


def test_goals_are_set_by_the_best_of_the_others() -> None:
    assert results_of(penstock=0.4, envoy=0.9, haproxy=0.5) == {"1.0": True, "0.5": False}
    assert results_of(penstock=0.4, envoy=0.9, haproxy=0.8) == {"1.0": True, "0.5": True}
    assert results_of(penstock=0.6, envoy=0.5) == {"1.0": False, "0.5": False}
    assert results_of(penstock=0.6) == {"1.0": None, "0.5": None}


def test_a_round_without_a_quantile_leaves_none_for_all() -> None:
    one = balancer("penstock", "1", (), 1, [run_of(0.5), run_of(0.7, refused=5)])
    assert one.e2e_p50_s == pytest.approx(0.6)
    assert one.e2e_p99_s is None
    assert one.refused == 5


def test_the_fleet_mixes_accelerators_with_like_seats() -> None:
    fleet = engines_of(2)
    assert len({engine.name for engine in fleet}) == 6
    assert {engine.accelerator for engine in fleet} == {"h100", "a100", "l40s"}
    assert {engine.max_num_seqs for engine in fleet} == {MAX_NUM_SEQS}


def test_the_workload_is_the_same_for_everybody_and_has_the_rate_asked_for() -> None:
    first = workload_of(None, 20.0, 60.0, 4.0, Random(1))
    assert first == workload_of(None, 20.0, 60.0, 4.0, Random(1))
    assert first[-1].at_s <= 60.0 / 4.0
    assert len(first) == pytest.approx(20.0 * 60.0, rel=0.1)
    assert {one.site for one in first} == {site.name for site in CLIENT_SITES}
    assert len(CLIENT_SITES) == INSTANCES
    for site in CLIENT_SITES:
        assert sum(one.site == site.name for one in first) == pytest.approx(len(first) / INSTANCES, rel=0.2)


def test_a_trace_that_is_too_short_is_said(tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    with pytest.raises(TraceError, match="lasts 4 s of 60 s"):
        workload_of(trace, 20.0, 60.0, 4.0, Random(1))
