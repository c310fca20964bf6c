"""AIPerf gets the workload's bodies with hidden lengths of answers; its figures are compared with the best other's."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from lab.bench.live.workloads import WORKLOADS, Draw
from lab.bench.outside.aiperf import AiperfError, AiperfRun, read_results, run_aiperf, write_tokenizer, write_trace
from lab.bench.outside.outside_bench import Contest, Rounds, best_other, contest_table
from lab.traces.trace import COMMON_MAX_TOKENS

SUMMARY = msgspec.json.encode(
    {
        "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 40.0, "p99": 300.0},
        "request_latency": {"unit": "ms", "avg": 2000.0, "p50": 1500.0, "p99": 9000.0},
        "request_count": {"unit": "requests", "avg": 120.0},
        "error_request_count": {"unit": "requests", "avg": 3.0},
        "input_config": {"endpoint": ["x"]},
    }
)


def test_figures_are_those_of_the_modelled_hardware() -> None:
    run = read_results(SUMMARY, time_scale=2.0)
    assert (run.requests, run.errors) == (120, 3)
    assert run.figures["ttft_p50_s"] == pytest.approx(0.08)
    assert run.figures["e2e_p99_s"] == pytest.approx(18.0)
    assert "tpot_p50_s" not in run.figures, "what AIPerf did not measure is missing, not 0"


def test_the_trace_has_every_body_at_its_time_and_no_length_in_a_field(tmp_path: Path) -> None:
    planned = WORKLOADS["multi-turn"].plan(Draw(10.0, 10.0, tmp_path, Random(1)), 1.0)
    write_trace(planned, tmp_path / "trace.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    assert [line["timestamp"] for line in lines] == [round(request.at_s * 1000) for request in planned]
    assert {line["payload"]["max_tokens"] for line in lines} == {COMMON_MAX_TOKENS}
    assert all(line["payload"]["messages"][0]["content"].endswith(">") for line in lines)


def test_a_run_that_fails_reports_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with pytest.raises(AiperfError, match="ended with 3:\nno such model"):
        run_aiperf(command, tmp_path / "run", 1.0)
    write_tokenizer(tmp_path)
    assert msgspec.json.decode((tmp_path / "tokenizer.json").read_bytes())["model"]["type"] == "WordLevel"


def test_penstock_is_compared_with_the_best_other_system() -> None:
    def rounds(name: str, *ttft_s: float) -> Rounds:
        return Rounds(name, [AiperfRun({"ttft_p50_s": value}, 10, 0) for value in ttft_s], [3.0])

    contest = Contest("chats", 10.0, 0.8, [rounds("penstock", 0.2, 0.4, 0.3), rounds("a", 0.2), rounds("b")])
    assert best_other(contest, "ttft_p50_s") == (0.2, "a")
    assert best_other(contest, "e2e_p50_s") is None
    assert contest_table(contest).row_count == 4
