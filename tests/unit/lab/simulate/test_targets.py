"""`penstock-lab sim` at its smallest: every target has a row, and the same seed gives the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench.bench_results import write_results
from lab.simulate.contenders import BOUNDS, GLOBAL_LEAST_REQUEST, LOCAL_LEAST_REQUEST, PENSTOCK, AgentSettings, run
from lab.simulate.fleets import EngineKind, ImageFleet
from lab.simulate.targets.chat_targets import REUSE, ChatScenario
from lab.simulate.targets.comparison import at_least, at_most, ratio
from lab.simulate.targets.frontier import DISCIPLINES, FRONTIER_SCENARIOS, METRICS, frontier
from lab.simulate.targets.global_targets import CENTRAL, OLD_REPORTS, POOLING, WATERFALL
from lab.simulate.targets.image_targets import OLD_VIEW, ONE_SLOT
from lab.simulate.targets.scenarios import Scale, image_jobs, measures
from lab.simulate.targets.targets_report import simulate

MIXED = (EngineKind("h100", 4, 4), EngineKind("a100", 6, 4), EngineKind("l40s", 6, 4))
"""A stream on the slowest engine takes four times as long as on the fastest engine."""

TINY = Scale(seeds=2, image_jobs=60, chat_s=2.0, step_s=2.0)
LONGER = Scale(seeds=1, image_jobs=600, chat_s=2.0, step_s=2.0)


@pytest.mark.long
def test_the_report_has_every_target_of_a_tiny_run(tmp_path: Path) -> None:
    write_results(tmp_path / "sim.json", simulate(TINY, processes=1))
    report = json.loads((tmp_path / "sim.json").read_bytes())
    assert {row["name"].split()[0] for row in report["targets"]} == {"1", "2", "3", "4", "5", "6", "7", "8", "9"}
    for row in report["targets"]:
        assert row["interval"][0] <= row["measured"] <= row["interval"][1]
        assert isinstance(row["kept"], bool)
    assert {point["discipline"] for point in report["frontier"]} == {*DISCIPLINES, *BOUNDS}


@pytest.mark.parametrize("contender", ONE_SLOT.contenders)
def test_every_system_completes_every_job(contender: str) -> None:
    measured = ONE_SLOT.measure(contender, TINY, 1)
    assert measured["e2e_p999_s"] >= measured["e2e_p50_s"] > 0.0
    assert measured == ONE_SLOT.measure(contender, TINY, 1)


def test_a_view_of_given_age_is_worse_than_the_exchange() -> None:
    shared = "least request, shared counts"
    old, fresh = (scenario.measure(shared, LONGER, 1)["e2e_p99_s"] for scenario in (OLD_VIEW, ONE_SLOT))
    assert old > 1.5 * fresh


def test_a_discipline_is_behind_those_that_are_better_in_one_metric_and_as_good_in_all() -> None:
    level, median, both = (
        dict(zip(METRICS, values, strict=True)) for values in ((4, 4, 8, 9), (3, 3, 9, 9), (3, 3, 8, 9))
    )
    better = {"penstock, by arrival": level, "penstock, shortest, overtaken 2 s": median}
    runs = {
        scenario.name: {name: [better.get(name, both)] for name in scenario.contenders}
        for scenario in FRONTIER_SCENARIOS
    }
    runs[ONE_SLOT.name] = {name: [both] for name in BOUNDS}
    points = {point.discipline: point.behind for point in frontier(runs) if point.workload == ONE_SLOT.name}
    assert set(better).isdisjoint(name for behind in points.values() for name in behind)
    assert set(points["penstock, by arrival"]) == set(points) - set(better)
    assert points["penstock, shortest, overtaken 10 s"] == ()


@pytest.mark.long
def test_with_full_engines_penstock_has_the_shortest_tail() -> None:
    full = ChatScenario(name="full", kinds=MIXED, agents=8, contenders=(), rate_per_s=26.0, reuse=False)
    scale = Scale(seeds=1, image_jobs=0, chat_s=45.0, step_s=0.0)
    ours, shared, own = (full.measure(name, scale, 2) for name in (PENSTOCK, GLOBAL_LEAST_REQUEST, LOCAL_LEAST_REQUEST))
    assert ours["ttft_p99_s"] < 0.7 * shared["ttft_p99_s"] < 0.7 * own["ttft_p99_s"]
    assert ours["e2e_p99_s"] < 0.95 * shared["e2e_p99_s"] < 0.95 * own["e2e_p99_s"]


def test_three_agents_find_cached_prefixes_as_one_does() -> None:
    scale = Scale(seeds=1, image_jobs=0, chat_s=30.0, step_s=0.0)
    alone, shared = (scenario.measure(PENSTOCK, scale, 1) for scenario in REUSE)
    others = REUSE[0].measure(LOCAL_LEAST_REQUEST, scale, 1)
    assert shared["ttft_p50_s"] < 1.1 * alone["ttft_p50_s"]
    assert shared["ttft_p50_s"] < 0.6 * others["ttft_p50_s"]
    assert shared["e2e_p99_s"] < 0.6 * others["e2e_p99_s"]


@pytest.mark.long
def test_shortest_work_first_costs_the_tail() -> None:
    by_arrival, shortest = "penstock, by arrival", "penstock, shortest, overtaken 60 s"
    in_turn, shortest_first = (FRONTIER_SCENARIOS[0].measure(name, LONGER, 1) for name in (by_arrival, shortest))
    assert shortest_first["e2e_p99_s"] > in_turn["e2e_p99_s"]


def test_the_variation_of_a_kind_counts_by_its_use() -> None:
    """One job on one of two slow engines has a variation of 1 among these, which weighs little by their use."""
    kinds = (EngineKind("", 2, 1, 2.0), EngineKind("", 2, 1, 0.01))
    region = run("round robin", lambda clock: ImageFleet(clock, kinds), image_jobs(3, 0.001, 1), AgentSettings(1), 1)
    use = region.use()
    pairs = [(first, second) for first, second in (use[:2], use[2:])]
    spread = sum(abs(first - second) / 2 for first, second in pairs)
    assert measures(region)["use_cv"] == pytest.approx(spread / (sum(use) / 2))


def test_an_interval_covers_the_ratio_and_shrinks_to_it() -> None:
    measured, (low, high) = ratio([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert (measured, low, high) == (1.0, pytest.approx(0.5), pytest.approx(1.5))
    assert ratio([2.0] * 4, [4.0] * 4) == (0.5, (0.5, 0.5))
    assert at_most(0.5, "x", (0.5, (0.4, 0.6))).kept
    assert not at_most(0.49, "x", (0.5, (0.4, 0.6))).kept
    assert not at_least(0.51, "x", (0.5, (0.4, 0.6))).kept


@pytest.mark.long
def test_old_reports_cost_plans_with_spill_credits_less_than_plans_alone() -> None:
    scale = Scale(seeds=1, image_jobs=0, chat_s=0.0, step_s=20.0)
    runs = {name: OLD_REPORTS.measure(name, scale, 1) for name in (CENTRAL, PENSTOCK, WATERFALL, "latency only")}
    assert runs[CENTRAL]["wait_mean_s"] < runs[PENSTOCK]["wait_mean_s"] < 0.3 * runs[WATERFALL]["wait_mean_s"]
    assert runs[WATERFALL]["wait_mean_s"] < runs["latency only"]["wait_mean_s"]
    assert runs["latency only"]["away"] == 0 < runs[PENSTOCK]["away"]


def test_pooling_saves_slots() -> None:
    measured = POOLING.measure(PENSTOCK, TINY, 1)
    assert 0.1 < measured["pooling_could_save"] < 0.5
    assert measured["saved_part"] >= 0.8
