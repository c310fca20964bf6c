"""Runs `vllm bench serve` against a router, with the prompts of a workload as its dataset, and reads what it measured.

It sends the prompts in their order, each with `max_completion_tokens` 1,024, at times that it draws itself: a Poisson
process of the workload's rate, the same for every router, since the seed is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from lab.bench.outside.driver import (
    API_KEY,
    CLIENT_ADDRESS,
    Assignment,
    DriverError,
    DriverRun,
    body_of,
    check_installed,
    program_version,
    run_program,
    write_tokenizer,
)
from lab.replay.chat_request import CHAT_PATH
from lab.replay.replay_workload import PlannedRequest
from lab.traces.trace import COMMON_MAX_TOKENS

RESULTS_FILE: Final = "vllm-bench.json"

DATASET_FILE: Final = "prompts.jsonl"

TOKENIZER_DIR: Final = "tokenizer"

WHATS: Final = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""Its names of the metrics, in ms."""

PARTS: Final = {"mean": "mean", "p50": "median", "p99": "p99"}

INSTALL: Final = "`make test-engines ARGS=vllm` installs out/engines/environments/vllm/bin/vllm"


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message]


class VllmBench:
    """`vllm bench serve`, by vLLM's console script."""

    name = "vllm-bench"

    def __init__(self, program: Path) -> None:
        self._program = program

    def version(self) -> str:
        """Version of the installed vLLM; raises DriverError if it is missing."""
        check_installed(self._program, INSTALL)
        # `vllm --version` imports all of vLLM, 15 s of CPU time. Without pandas it cannot read the prompts.
        asks = "from importlib.metadata import version; version('pandas'); print(version('vllm'))"
        return program_version(self._program.with_name("python"), "-c", asks)

    def run(self, assignment: Assignment) -> DriverRun:
        """Send the prompts at the workload's rate; raises DriverError."""
        directory = assignment.directory
        write_tokenizer(directory / TOKENIZER_DIR)
        write_dataset(assignment.planned, directory / DATASET_FILE)
        environment = {"OPENAI_API_KEY": API_KEY, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        run_program(self.arguments(assignment), directory / "vllm-bench.log", environment)
        try:
            data = (directory / RESULTS_FILE).read_bytes()
        except FileNotFoundError:
            raise DriverError(f"vllm bench serve wrote no {RESULTS_FILE}") from None
        return read_results(data, assignment.time_scale)

    def arguments(self, assignment: Assignment) -> list[str]:
        """Return the command line of one run."""
        directory, requests = assignment.directory, len(assignment.planned)
        return [
            *(str(self._program), "bench", "serve", "--backend", "openai-chat", "--base-url", assignment.url),
            *("--endpoint", CHAT_PATH.decode(), "--model", assignment.model),
            *("--tokenizer", str(directory / TOKENIZER_DIR), "--skip-chat-template"),
            *("--dataset-name", "custom", "--dataset-path", str(directory / DATASET_FILE), "--disable-shuffle"),
            *("--num-prompts", str(requests), "--custom-output-len", str(COMMON_MAX_TOKENS)),
            *("--request-rate", f"{requests / assignment.seconds:.6f}", "--seed", "1", "--request-id-prefix", "bench-"),
            *("--header", f"X-Forwarded-For={CLIENT_ADDRESS}"),
            *("--percentile-metrics", ",".join(WHATS.values()), "--metric-percentiles", "99", "--disable-tqdm"),
            *("--save-result", "--result-dir", str(directory), "--result-filename", RESULTS_FILE),
        ]


def write_dataset(planned: Sequence[PlannedRequest], file: Path) -> None:
    """Write the prompts as a custom dataset."""
    prompts = [msgspec.json.decode(body_of(request), type=_Body).messages[0].content for request in planned]
    file.write_bytes(b"".join(msgspec.json.encode({"prompt": prompt}) + b"\n" for prompt in prompts))


def read_results(data: bytes, time_scale: float) -> DriverRun:
    """Return the figures in its results (JSON)."""
    found = msgspec.json.decode(data, type=dict[str, object])
    figures = {}
    for what, name in WHATS.items():
        for part, key in PARTS.items():
            value = found.get(f"{key}_{name}_ms")
            if isinstance(value, int | float):
                figures[f"{what}_{part}_s"] = round(value / 1000 * time_scale, 5)
    answered, failed = (
        int(value) if isinstance(value := found.get(key), int) else 0 for key in ("completed", "failed")
    )
    return DriverRun(figures, answered, failed)
