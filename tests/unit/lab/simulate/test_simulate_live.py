"""The live benchmark's mix in simulated time: Penstock's targets, on more requests than the live benchmark sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli import app
from lab.simulate.contenders import LOCAL_LEAST_REQUEST, PENSTOCK
from lab.simulate.live import COMPARED, Round, conversation_rounds, measure_tails, rounds_of


@pytest.fixture(scope="module")
def rounds() -> list[Round]:
    return rounds_of(None, rate_per_s=15.0, seconds=56.0, count=2, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("agents", [1, 3])
def test_half_the_tail_latency_of_least_request_at_equal_first_token(agents: int, rounds: list[Round]) -> None:
    others, ours = (measure_tails(contender, agents, rounds, warm_up_s=8.0) for contender in COMPARED)
    assert ours.requests == others.requests > 1000
    assert ours.e2e_p99_s < 0.55 * others.e2e_p99_s
    assert ours.ttft_p99_s < 1.15 * others.ttft_p99_s


@pytest.mark.long
def test_three_agents_find_cached_prefixes_as_one_does() -> None:
    rounds = conversation_rounds(rate_per_s=16.0, seconds=56.0, count=2, seed=1)
    alone, shared = (measure_tails(PENSTOCK, agents, rounds, warm_up_s=16.0) for agents in (1, 3))
    others = measure_tails(LOCAL_LEAST_REQUEST, 1, rounds, warm_up_s=16.0)
    assert shared.requests == alone.requests > 1000
    assert shared.ttft_p50_s < 1.1 * alone.ttft_p50_s
    assert shared.ttft_p50_s < 0.6 * others.ttft_p50_s
    assert shared.e2e_p99_s < 0.6 * others.e2e_p99_s


def test_the_same_seed_gives_the_same_tail(rounds: list[Round]) -> None:
    assert rounds_of(None, rate_per_s=15.0, seconds=56.0, count=1, seed=1) == rounds[:1]
    first, second = (measure_tails(PENSTOCK, 3, rounds[:1], 8.0) for _ in range(2))
    assert first == second


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "live.json"
    options = ["simulate-live", "--rounds", "1", "--seconds", "12", "--warm-up", "2", "--out", str(out)]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    written = json.loads(out.read_bytes())
    assert [(tail["agents"], tail["contender"]) for tail in written["tails"]] == [
        (agents, contender) for agents in (1, 3) for contender in COMPARED
    ]


def test_unusable_input_is_a_one_line_error(tmp_path: Path) -> None:
    for options in (
        ["--warm-up", "60"],
        ["--trace", str(tmp_path / "none.csv")],
        ["--trace", "some.csv", "--conversations"],
    ):
        shown = CliRunner().invoke(app, ["simulate-live", *options])
        assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
