"""Drivers of others get the workload's prompts with hidden lengths of answers; what they measured is compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import msgspec
import pytest

from lab.bench.bench_results import this_machine, write_results
from lab.bench.live.workloads import FOR_SMALL_ENGINES, WORKLOADS, Draw, Workload
from lab.bench.outside import aiperf, vllm_bench
from lab.bench.outside.driver import Assignment, DriverError, DriverRun, body_of, run_program, write_tokenizer
from lab.bench.outside.grounds import CONTEXT_TOKENS, requests_of
from lab.bench.outside.mockers import ENDS, VOCABULARY, write_model
from lab.bench.outside.outside_bench import main
from lab.bench.outside.outside_results import Contest, Results, Rounds, best_other, contest_table, to_best
from lab.bench.outside.plots import main as draw_plots
from lab.engine.completion_request import parse_completion
from lab.replay.replay_workload import PlannedRequest
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

OF_VLLM = msgspec.json.encode(
    {
        "mean_ttft_ms": 50.0,
        "median_ttft_ms": 40.0,
        "p99_ttft_ms": 300.0,
        "p99_e2el_ms": 9000.0,
        "completed": 120,
        "failed": 3,
        "request_rate": "inf",
        "max_concurrency": None,
    }
)


def _planned() -> list[PlannedRequest]:
    return WORKLOADS["multi-turn"].plan(Draw(10.0, 10.0, Path("absent"), Random(1)), 1.0)


@pytest.mark.parametrize(
    "read", [lambda: aiperf.read_results(SUMMARY, 2.0), lambda: vllm_bench.read_results(OF_VLLM, 2.0)]
)
def test_figures_are_those_of_the_modelled_hardware(read: Callable[[], DriverRun]) -> None:
    run = read()
    assert (run.requests, run.errors) == (120, 3)
    assert run.figures["ttft_p50_s"] == pytest.approx(0.08)
    assert run.figures["e2e_p99_s"] == pytest.approx(18.0)
    assert "tpot_p50_s" not in run.figures, "what was not measured is missing, not 0"


def test_the_trace_has_every_body_at_its_time_and_no_length_in_a_field(tmp_path: Path) -> None:
    planned = _planned()
    aiperf.write_trace(planned, tmp_path / "trace.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    assert [line["timestamp"] for line in lines] == [round(request.at_s * 1000) for request in planned]
    assert {line["payload"]["max_tokens"] for line in lines} == {COMMON_MAX_TOKENS}
    assert all(line["payload"]["messages"][0]["content"].endswith(">") for line in lines)


def test_vllm_sends_the_same_prompts_and_the_engine_finds_the_lengths_in_them(tmp_path: Path) -> None:
    planned = _planned()
    vllm_bench.write_dataset(planned, tmp_path / "prompts.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "prompts.jsonl").read_bytes().splitlines()]
    assert all(line.keys() == {"prompt"} for line in lines)
    for line, request in zip(lines, planned, strict=True):
        assert line["prompt"] == msgspec.json.decode(body_of(request))["messages"][0]["content"]
    # As `vllm bench serve` 0.32 sends a prompt.
    content = [{"type": "text", "text": lines[0]["prompt"]}]
    body = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": COMMON_MAX_TOKENS}
    parsed = parse_completion(True, msgspec.json.encode({"model": "m", **body}), "m", 32_000, Random(1))
    assert parsed.output_tokens == planned[0].lengths.output_tokens


def test_both_drivers_send_all_requests_of_a_run_to_the_router_with_the_key(tmp_path: Path) -> None:
    planned = _planned()
    run = Assignment("http://127.0.0.1:1", "chat", planned, 10.0, 1.0, tmp_path)
    command = vllm_bench.VllmBench(Path("vllm")).arguments(run)
    assert command[command.index("--num-prompts") + 1] == str(len(planned))
    assert float(command[command.index("--request-rate") + 1]) == pytest.approx(len(planned) / 10.0)
    assert command[command.index("--custom-output-len") + 1] == str(COMMON_MAX_TOKENS)
    assert {"--base-url", run.url, "--disable-shuffle"} <= set(command)
    assert {"--url", run.url, "--fixed-schedule"} <= set(aiperf.Aiperf(Path("aiperf")).arguments(run))


@pytest.mark.parametrize("workload", FOR_SMALL_ENGINES.values())
def test_a_prompt_and_its_answer_fit_into_a_small_engine(workload: Workload) -> None:
    planned = workload.plan(Draw(2.0, 60.0, Path("absent"), Random(1)), 1.0)
    prompts = [msgspec.json.decode(body_of(request))["messages"][0]["content"] for request in planned]
    assert max(map(len, prompts)) + COMMON_MAX_TOKENS + len("<user>\n<assistant>") < CONTEXT_TOKENS
    assert len({prompt[:2048] for prompt in prompts}) < len(prompts) / 2, "system prompts are shared"


def test_every_byte_and_every_drawn_token_of_a_mocker_is_a_token(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    tokenizer = msgspec.json.decode((tmp_path / "model" / "tokenizer.json").read_bytes())
    tokens = {number: name for name, number in tokenizer["model"]["vocab"].items()}
    assert sorted(tokens) == [*range(VOCABULARY)], "no letter stands for two bytes"
    assert sum(len(name) == 1 for name in tokens.values()) == 256
    assert all(tokens[number].startswith("\u0120w") for number in range(1000, 2000))
    for name in ("config.json", "generation_config.json"):
        assert msgspec.json.decode((tmp_path / "model" / name).read_bytes())["eos_token_id"] == [*ENDS]


def test_a_run_that_fails_reports_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with pytest.raises(DriverError, match="ended with 3:\nno such model"):
        run_program(command, tmp_path / "run" / "log")
    write_tokenizer(tmp_path)
    assert msgspec.json.decode((tmp_path / "tokenizer.json").read_bytes())["model"]["type"] == "WordLevel"


@pytest.mark.parametrize(
    "given",
    [
        ("--driver", "vllm-bench"),
        ("--servers",),
        ("--driver", "vllm-bench", "--vllm", "absent/vllm"),
        ("--aiperf", "absent"),
    ],
)
def test_a_missing_driver_is_named_with_how_to_install_it(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert "make " in capsys.readouterr().err


def test_a_server_is_idle_when_nothing_runs_or_waits() -> None:
    running = 'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
    waiting = '# HELP vllm:num_requests_waiting x\nvllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    assert requests_of(running + waiting) == 2.0
    assert requests_of(waiting) == 0.0


def _contest(workload: str = "chats") -> Contest:
    def rounds(name: str, *ttft_s: float) -> Rounds:
        return Rounds(name, [DriverRun({"ttft_p50_s": value}, 10, 0) for value in ttft_s], [3.0])

    systems = [rounds("penstock", 0.2, 0.4, 0.3), rounds("a", 0.2), rounds("b")]
    return Contest(workload, "aiperf", "9 engines", 10.0, 0.8, systems)


def test_penstock_is_compared_with_the_best_other_system() -> None:
    contest = _contest()
    assert best_other(contest, "ttft_p50_s") == (0.2, "a")
    assert best_other(contest, "e2e_p50_s") is None
    assert to_best(contest, "ttft_p50_s") == pytest.approx(1.5)
    assert contest_table(contest).row_count == 4


def test_plots_are_drawn_from_files_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("chats", "questions"):
        results = Results(this_machine(), {"aiperf": "0.13.0"}, {}, [], [_contest(name)])
        write_results(tmp_path / f"{name}.json", results)
    assert draw_plots([*map(str, sorted(tmp_path.glob("*.json"))), str(tmp_path)]) == 0
    texts = {
        file.name: {element.text for element in ElementTree.parse(file).iter() if element.text}
        for file in tmp_path.glob("*.svg")
    }
    assert texts.keys() == {"outside-chats-aiperf.svg", "outside-questions-aiperf.svg", "outside-ratios.svg"}
    assert {"penstock", "a", "0.30", "0.20", "1.50 of the best other"} <= texts["outside-chats-aiperf.svg"]
    assert "1.50" in texts["outside-ratios.svg"]
    assert draw_plots([]) == 2
