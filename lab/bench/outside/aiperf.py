"""Runs AIPerf against a router, with the requests of a workload as its trace, and reads what it measured.

AIPerf sends each body at its time and measures; only the bodies are the lab's. They have `max_tokens` 1,024, and the
length of each answer stands at the end of the prompt's text.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from lab.bench.live.fleet import CLIENT_SITES
from lab.replay.chat_request import chat_request
from lab.replay.replay_workload import PlannedRequest

RESULTS_FILE: Final = "profile_export_aiperf.json"

TOKENIZER_DIR: Final = "tokenizer"

MAX_RUN_S: Final = 900.0
"""Time (s) after which a run of AIPerf is stopped."""

FIGURES: Final = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
"""AIPerf's names of the metrics, in ms."""

PARTS: Final = {"mean": "avg", "p50": "p50", "p99": "p99"}


class AiperfError(Exception):
    """AIPerf did not run to its end; the message has its last lines."""


class AiperfRun(msgspec.Struct, frozen=True):
    """What AIPerf measured in one run."""

    figures: dict[str, float]
    """Mean, p50 and p99 (s of the modelled hardware) of the times in FIGURES, by names such as `ttft_p50_s`."""
    requests: int
    """Requests that were answered."""
    errors: int


def write_trace(planned: Sequence[PlannedRequest], file: Path) -> None:
    """Write requests as a Mooncake trace whose lines contain the bodies."""
    lines = []
    for request in planned:
        body = chat_request(request).rest.partition(b"\r\n\r\n")[2]
        lines.append(b'{"timestamp":%d,"payload":%b}\n' % (round(request.at_s * 1000), body))
    file.write_bytes(b"".join(lines))


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of words. AIPerf must load one, and would download it; it counts by what engines report."""
    directory.mkdir(parents=True, exist_ok=True)
    unknown = {"unk_token": "<unk>", "bos_token": "<unk>", "eos_token": "<unk>", "pad_token": "<unk>"}
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"},
        },
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **unknown},
    }
    for name, content in files.items():
        (directory / name).write_bytes(msgspec.json.encode(content))


def arguments(program: Path, url: str, model: str, trace: Path, directory: Path, api_key: str) -> list[str]:
    """Return the command line of one run.

    Args:
        program: AIPerf's console script.
        url: base URL of the router.
        directory: directory for AIPerf's files, with a tokenizer of `write_tokenizer` in TOKENIZER_DIR.
        api_key: key of the requests, which only Penstock reads.
    """
    address = CLIENT_SITES[0].address(Random(1))
    return [
        *(str(program), "profile", "--model", model, "--url", url, "--endpoint-type", "chat", "--streaming"),
        *("--custom-dataset-type", "mooncake-trace", "--input-file", str(trace), "--fixed-schedule"),
        *("--tokenizer", str(directory / TOKENIZER_DIR), "--use-server-token-count", "--api-key", api_key),
        *("--header", f"X-Forwarded-For:{address}", "--request-timeout-seconds", "300"),
        *("--output-artifact-dir", str(directory), "--export-level", "summary", "--ui", "none"),
        *("--no-server-metrics", "--no-gpu-telemetry", "--workers-max", "2", "--random-seed", "1"),
    ]


def run_aiperf(command: Sequence[str], directory: Path, time_scale: float) -> AiperfRun:
    """Run AIPerf, and return what it measured.

    Args:
        command: the result of `arguments`.
        directory: directory for AIPerf's files.
        time_scale: speed of engines and arrivals relative to the modelled hardware.

    Raises:
        AiperfError: it failed or took more than MAX_RUN_S.
    """
    write_tokenizer(directory / TOKENIZER_DIR)
    log = directory / "aiperf.log"
    try:
        with log.open("wb") as output:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=MAX_RUN_S, check=False
            )
    except subprocess.TimeoutExpired:
        raise AiperfError(f"AIPerf took more than {MAX_RUN_S:.0f} s") from None
    found = sorted(directory.rglob(RESULTS_FILE))
    if ended.returncode or not found:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise AiperfError(f"AIPerf ended with {ended.returncode}:\n" + "\n".join(last))
    return read_results(found[0].read_bytes(), time_scale)


def read_results(data: bytes, time_scale: float) -> AiperfRun:
    """Return the figures in AIPerf's summary (JSON)."""
    summary = msgspec.json.decode(data, type=dict[str, msgspec.Raw])

    def metric(name: str) -> dict[str, object]:
        raw = summary.get(name)
        return {} if raw is None else msgspec.json.decode(raw, type=dict[str, object])

    figures = {}
    for what, name in FIGURES.items():
        found = metric(name)
        for part, key in PARTS.items():
            value = found.get(key)
            if isinstance(value, int | float):
                figures[f"{what}_{part}_s"] = round(value / 1000 * time_scale, 5)
    counts = {name: metric(name).get("avg", 0) for name in ("request_count", "error_request_count")}
    answered, failed = (int(value) if isinstance(value, int | float) else 0 for value in counts.values())
    return AiperfRun(figures, answered, failed)
