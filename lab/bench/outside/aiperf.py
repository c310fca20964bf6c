"""Runs NVIDIA's AIPerf against a router, with the requests of a workload as its trace, and reads what it measured.

AIPerf sends each body at its time, or after the response to the previous turn of its session, and measures; only the
bodies are the lab's. They have `max_tokens` 1,024, and the length of each answer stands at the end of the prompt.
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
from lab.bench.outside.sent_sessions import session_lines
from lab.replay.replay_workload import PlannedRequest

RESULTS_FILE: Final = "profile_export_aiperf.json"

RECORDS_FILE: Final = "profile_export.jsonl"

TRACE_FILE: Final = "trace.jsonl"

ENVIRONMENT: Final = {"AIPERF_HTTP_X_SESSION_AFFINITY_FROM_CORRELATION_ID": "false"}
"""Without the header by which AIPerf names sessions, since it gives each request of a trace one of its own."""

TOKENIZER_DIR: Final = "tokenizer"

FIGURES: Final = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
"""AIPerf's names of the metrics, in ms."""

PARTS: Final = {"mean": "avg", "p50": "p50", "p99": "p99"}


class _Metric(msgspec.Struct):
    value: float


class _Record(msgspec.Struct):
    metrics: dict[str, msgspec.Raw]


class Aiperf:
    """AIPerf, by its console script."""

    name = "aiperf"

    def __init__(self, program: Path) -> None:
        self._program = program

    def version(self) -> str:
        """Version that AIPerf reports; raises DriverError if it is missing."""
        check_installed(self._program, "run `make bench-outside`, which installs AIPerf")
        return program_version(self._program, "--version")

    def run(self, assignment: Assignment) -> DriverRun:
        """Replay the requests at their times; raises DriverError."""
        directory = assignment.directory
        write_tokenizer(directory / TOKENIZER_DIR)
        if assignment.sessions:
            write_sessions(assignment, directory / TRACE_FILE)
        else:
            write_trace(assignment.planned, directory / TRACE_FILE)
        run_program(self.arguments(assignment), directory / "aiperf.log", ENVIRONMENT)
        found = sorted(directory.rglob(RESULTS_FILE))
        if not found:
            raise DriverError(f"AIPerf wrote no {RESULTS_FILE}")
        run = read_results(found[0].read_bytes(), assignment.time_scale)
        if not assignment.pooled:
            return run
        records = found[0].with_name(RECORDS_FILE).read_bytes()
        return msgspec.structs.replace(run, samples=read_samples(records, assignment.time_scale))

    def arguments(self, assignment: Assignment) -> list[str]:
        """Return the command line of one run."""
        directory = assignment.directory
        return [
            *(str(self._program), "profile", "--model", assignment.model, "--url", assignment.url),
            *("--endpoint-type", "chat", "--streaming", "--custom-dataset-type", "mooncake-trace"),
            *("--input-file", str(directory / TRACE_FILE), "--fixed-schedule"),
            *("--tokenizer", str(directory / TOKENIZER_DIR), "--use-server-token-count", "--api-key", API_KEY),
            *("--header", f"X-Forwarded-For:{CLIENT_ADDRESS}", "--request-timeout-seconds", "300"),
            *("--output-artifact-dir", str(directory), "--ui", "none"),
            *("--export-level", "records" if assignment.pooled else "summary"),
            *("--no-server-metrics", "--no-gpu-telemetry", "--workers-max", "2", "--random-seed", "1"),
        ]


def write_trace(planned: Sequence[PlannedRequest], file: Path) -> None:
    """Write requests as a Mooncake trace whose lines contain the bodies."""
    lines = [b'{"timestamp":%d,"payload":%b}\n' % (round(each.at_s * 1000), body_of(each)) for each in planned]
    file.write_bytes(b"".join(lines))


def write_sessions(assignment: Assignment, file: Path) -> None:
    """Write sessions as a Mooncake trace, with a line for each turn."""
    with file.open("wb") as trace:
        for session in assignment.sessions:
            trace.writelines(session_lines(session, assignment.model, assignment.time_scale))


def read_samples(data: bytes, time_scale: float) -> dict[str, list[float]]:
    """Return the times (s) of each answered request by kind, from AIPerf's records (JSON lines)."""
    samples: dict[str, list[float]] = {what: [] for what in FIGURES}
    for line in data.splitlines():
        metrics = msgspec.json.decode(line, type=_Record).metrics
        for what, name in FIGURES.items():
            if name in metrics:
                value_ms = msgspec.json.decode(metrics[name], type=_Metric).value
                samples[what].append(value_ms / 1000 * time_scale)
    return samples


def read_results(data: bytes, time_scale: float) -> DriverRun:
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
    return DriverRun(figures, answered, failed)
