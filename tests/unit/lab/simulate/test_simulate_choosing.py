"""On mixed engines behind several agents, each better policy lowers tail latency; results are reproducible by seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli import app
from lab.simulate.choosing import Outcome, Strategy, compare


@pytest.fixture(scope="module")
def outcomes() -> dict[Strategy, Outcome]:
    return {outcome.strategy: outcome for outcome in compare(duration_s=50.0, seed=1)}


def test_every_request_is_answered_under_every_strategy(outcomes: dict[Strategy, Outcome]) -> None:
    assert len({outcome.requests for outcome in outcomes.values()}) == 1
    assert outcomes[Strategy.LEAST_WORK].requests > 400


def test_least_request_beats_round_robin(outcomes: dict[Strategy, Outcome]) -> None:
    assert 1.3 * outcomes[Strategy.LEAST_REQUEST_LOCAL].end_p99_s < outcomes[Strategy.ROUND_ROBIN].end_p99_s


def test_a_stale_view_is_worse_than_none_and_two_choices_save_some_of_it(outcomes: dict[Strategy, Outcome]) -> None:
    stale, two = outcomes[Strategy.LEAST_REQUEST_STALE], outcomes[Strategy.TWO_CHOICES_STALE]
    assert stale.first_p99_s > outcomes[Strategy.LEAST_REQUEST_LOCAL].first_p99_s
    assert two.first_p99_s < stale.first_p99_s


def test_a_shared_view_beats_own_views(outcomes: dict[Strategy, Outcome]) -> None:
    local, shared = outcomes[Strategy.LEAST_REQUEST_LOCAL], outcomes[Strategy.LEAST_REQUEST_SHARED]
    assert shared.end_p99_s < local.end_p99_s
    assert 2 * shared.first_p99_s < local.first_p99_s


@pytest.mark.parametrize("strategy", [Strategy.LEAST_WORK, Strategy.LEAST_WORK_LATE])
def test_least_work_beats_least_request(outcomes: dict[Strategy, Outcome], strategy: Strategy) -> None:
    shared = outcomes[Strategy.LEAST_REQUEST_SHARED]
    assert outcomes[strategy].end_p99_s < 0.7 * shared.end_p99_s
    assert outcomes[strategy].end_p50_s < 0.9 * shared.end_p50_s


def test_where_engines_are_full_late_binding_starts_requests_sooner_and_in_turn() -> None:
    strategies = (Strategy.LEAST_REQUEST_SHARED, Strategy.LEAST_WORK, Strategy.LEAST_WORK_LATE)
    request, early, late = compare(strategies, requests_per_s=26.0, duration_s=45.0, seed=2)
    assert late.first_p99_s < 0.9 * early.first_p99_s < 0.9 * request.first_p99_s
    assert late.end_p99_s < 0.9 * request.end_p99_s


@pytest.mark.long
def test_where_engines_are_full_late_binding_does_not_cost_the_median() -> None:
    strategies = (Strategy.LEAST_WORK, Strategy.LEAST_WORK_LATE)
    runs = [compare(strategies, requests_per_s=26.0, duration_s=45.0, seed=seed) for seed in (1, 2, 3)]
    assert sum(late.end_p50_s for _, late in runs) < sum(early.end_p50_s for early, _ in runs)


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "choosing.json"
    options = ["simulate-choosing", "--rate", "4", "--seconds", "30", "--agents", "2", "--out", str(out)]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    written = json.loads(out.read_bytes())
    assert (written["settings"]["agents"], [rate["requests_per_s"] for rate in written["rates"]]) == (2, [4.0])
    assert [outcome["strategy"] for outcome in written["rates"][0]["outcomes"]] == [
        strategy.value for strategy in Strategy
    ]


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, second = (compare([Strategy.LEAST_WORK_LATE], duration_s=25.0, seed=3) for _ in range(2))
    assert first == second
