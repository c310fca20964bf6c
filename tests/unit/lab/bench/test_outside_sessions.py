"""Sessions of agents and several regions, as drivers of others send and measure them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from lab.bench.live.fleet import MODEL, engines_of
from lab.bench.live.workloads import WORKLOADS, Draw
from lab.bench.outside import aiperf
from lab.bench.outside.driver import Assignment, DriverRun
from lab.bench.outside.outside_bench import main
from lab.bench.outside.outside_results import Contest
from lab.bench.outside.regions import SHARES, divide, pooled, region_engines
from lab.bench.outside.sent_sessions import AgentSession, draw_sessions, session_lines
from lab.engine.completion_request import CompletionRequest, parse_completion
from lab.traces.agent_sessions import generate_session
from lab.traces.trace import COMMON_MAX_TOKENS

URLS = {region: f"http://127.0.0.1/{region}" for region in SHARES}


def _lines(session: AgentSession, time_scale: float = 1.0) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in session_lines(session, "m", time_scale)]


def _parsed(line: dict[str, Any]) -> CompletionRequest:
    return parse_completion(True, msgspec.json.encode(line["payload"]), "m", 131_072, Random(1))


def test_each_turn_of_a_session_repeats_what_was_said_and_comes_after_a_pause() -> None:
    session = AgentSession(3, 8.0, generate_session(3, Random(1)))
    lines = _lines(session, time_scale=2.0)
    assert len(lines) == len(session.turns) >= 20
    assert (lines[0]["timestamp"], "delay" in lines[0]) == (4000, False)
    assert [line["delay"] for line in lines[1:]] == [round(turn.pause_s * 500) for turn in session.turns[1:]]
    for before, after in pairwise(lines):
        said, more = before["payload"]["messages"], after["payload"]["messages"]
        assert more[: len(said)] == said
        assert [message["role"] for message in more[len(said) :]] == ["assistant", "tool"]
        assert more[-2]["tool_calls"][0]["id"] == more[-1]["tool_call_id"]
        assert _parsed(after).spans[: len(_parsed(before).spans) - 1] == _parsed(before).spans[:-1]


def test_engines_alone_find_the_length_of_an_answer_and_nothing_names_the_session() -> None:
    session = AgentSession(0, 0.0, generate_session(0, Random(2)))
    for line, turn in zip(_lines(session), session.turns, strict=True):
        parsed = _parsed(line)
        assert parsed.output_tokens == min(turn.output_tokens, COMMON_MAX_TOKENS)
        assert parsed.prompt_tokens == pytest.approx(turn.prompt_tokens, rel=0.05)
        assert line["payload"].keys() == {"model", "messages", "tools", "max_tokens", "stream", "stream_options"}


def test_sessions_share_their_instructions_only() -> None:
    first, second = (_parsed(_lines(AgentSession(n, 0.0, generate_session(n, Random(n))))[5]).spans for n in (0, 1))
    shared = [a for a, b in zip(first, second, strict=False) if a == b]
    assert 4 <= len(shared) <= 6


def test_more_load_and_more_engines_take_more_sessions() -> None:
    counts = [len(draw_sessions(load, engines_of(each), Random(1))) for load, each in ((0.5, 1), (1.0, 1), (1.0, 2))]
    assert counts == sorted(counts)
    assert counts[1] == pytest.approx(2 * counts[0], abs=1)
    assert (
        max(turn.prompt_tokens for each in draw_sessions(1.0, engines_of(1), Random(1)) for turn in each.turns) > 60_000
    )


def test_a_conversation_enters_at_one_region_and_regions_by_their_shares() -> None:
    planned = WORKLOADS["multi-turn"].plan(Draw(40.0, 30.0, Path("absent"), Random(1)), 1.0)
    sessions = [AgentSession(number, 0.0, ()) for number in range(400)]
    parts = divide(Assignment("", MODEL, planned, 30.0, 1.0, Path("x"), sessions), URLS)
    assert [part.url for part in parts] == list(URLS.values())
    assert len({part.directory for part in parts}) == len(parts)
    assert sorted(each.id for part in parts for each in part.planned) == sorted(each.id for each in planned)
    homes = [{each.lengths.conversation for each in part.planned} for part in parts]
    assert sum(map(len, homes)) == len(set.union(*homes))
    for part, share in zip(parts, SHARES.values(), strict=True):
        assert len(part.sessions) == pytest.approx(400 * share, abs=50)


def test_every_region_has_the_same_engines() -> None:
    regions = region_engines(engines_of(1))
    names = [engine.name for engines in regions.values() for engine in engines]
    assert len(set(names)) == len(names) == 9
    assert len({tuple(engine.accelerator for engine in engines) for engines in regions.values()}) == 1


def test_times_of_regions_are_pooled_and_not_averaged() -> None:
    slow, fast = ([float(n) for n in times] for times in (range(90, 100), range(1, 91)))
    found = pooled([DriverRun({}, 10, 1, {"ttft": slow, "tpot": []}), DriverRun({}, 90, 0, {"ttft": fast, "tpot": []})])
    assert (found.requests, found.errors, found.samples) == (100, 1, {})
    assert found.figures == {"ttft_mean_s": 50.4, "ttft_p50_s": 50.0, "ttft_p99_s": 98.0}


def test_aiperf_s_records_have_a_time_for_each_answered_request() -> None:
    answered = {"time_to_first_token": {"value": 50.0}, "request_latency": {"value": 900}, "output": {"value": [1, 2]}}
    lines = [
        {"metadata": {"x": 1}, "metrics": answered},
        {"metrics": {"error_isl": {"value": 5}}, "error": {"type": "x"}},
    ]
    samples = aiperf.read_samples(b"\n".join(map(msgspec.json.encode, lines)), 2.0)
    assert samples == {"ttft": [0.1], "tpot": [], "e2e": [1.8]}


@pytest.mark.parametrize(
    "given", [("--servers", "--vllm", "v", "--regions"), ("--mocker", "p", "--workload", "agent-sessions")]
)
def test_sessions_and_regions_need_the_lab_s_engines(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    assert "lab's engines only" in capsys.readouterr().err
    assert main(["--workload", "growing-chats"]) == main(["--servers", "--vllm", "v", "--workload", "multi-turn"]) == 2
    assert capsys.readouterr().err.count("with --servers, and only so") == 2


def test_the_title_of_a_contest_states_its_demand() -> None:
    assert Contest("chats", "aiperf", "9 engines", 10.0, 0.8, []).title.startswith("chats, 10.0/s, 80% of capacity")
    assert Contest("sessions", "aiperf", "9 engines", None, 0.5, [], 22).title.startswith("sessions, 22 sessions, 50%")
