"""What a load generator of others does in the benchmark: it sends a trace to a router, and measures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, Protocol

import msgspec

from lab.bench.live.fleet import CLIENT_SITES
from lab.bench.outside.sent_sessions import AgentSession
from lab.replay.chat_request import chat_request
from lab.replay.replay_workload import PlannedRequest

API_KEY: Final = "demo-open"
"""Key of the requests, which only Penstock reads."""

CLIENT_ADDRESS: Final = CLIENT_SITES[0].address(Random(1))
"""Value of X-Forwarded-For, which only Penstock reads."""

MAX_RUN_S: Final = 900.0
"""Time (s) after which a run of a driver is stopped."""


class DriverError(Exception):
    """A driver did not run to its end; the message has its last lines."""


class DriverRun(msgspec.Struct, frozen=True):
    """What a driver measured in one run."""

    figures: dict[str, float]
    """Mean, p50 and p99 (s of the modelled hardware) of ttft, tpot and e2e, by names such as `ttft_p50_s`."""
    requests: int
    """Requests that were answered."""
    errors: int
    samples: dict[str, list[float]] = {}
    """Times (s) of each answered request by kind, where several runs are to be pooled."""


class Assignment(msgspec.Struct, frozen=True):
    """One run of a driver."""

    url: str
    """Base URL of the router."""
    model: str
    planned: Sequence[PlannedRequest]
    seconds: float
    """Duration (s) of the arrivals."""
    time_scale: float
    """Speed of engines and arrivals relative to the modelled hardware."""
    directory: Path
    """Directory for the driver's files."""
    sessions: Sequence[AgentSession] = ()
    """Sessions that are sent instead of `planned`, each turn after the response to the previous one."""
    pooled: bool = False
    """Whether the run is one of several at once, whose times are pooled."""


class Driver(Protocol):
    """A load generator that others wrote."""

    @property
    def name(self) -> str:
        """Name in the results."""

    def version(self) -> str:
        """Version that the program reports; raises DriverError if it is missing."""

    def run(self, assignment: Assignment) -> DriverRun:
        """Send the requests to the router, and return what was measured; raises DriverError."""


def body_of(request: PlannedRequest) -> bytes:
    """Return the body of a chat request."""
    return chat_request(request).rest.partition(b"\r\n\r\n")[2]


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of words. Drivers must load one, and would download it; they count by what engines report."""
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


def run_program(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a driver's program to its end, with its output in a log.

    Raises:
        DriverError: the program failed or took more than MAX_RUN_S.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    program = Path(command[0]).name
    try:
        with log.open("wb") as output:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=MAX_RUN_S,
                check=False,
                env={**os.environ, **(environment or {})},
            )
    except subprocess.TimeoutExpired:
        raise DriverError(f"{program} took more than {MAX_RUN_S:.0f} s") from None
    if ended.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise DriverError(f"{program} ended with {ended.returncode}:\n" + "\n".join(last))


def program_version(program: Path, *arguments: str) -> str:
    """Return the last line that a program prints with `arguments`; raises DriverError if it fails."""
    try:
        asked = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise DriverError(f"{program} cannot be run: {error.strerror}") from None
    if asked.returncode or not asked.stdout.strip():
        raise DriverError(f"{program} {' '.join(arguments)} ended with {asked.returncode}: {asked.stderr[-500:]}")
    return asked.stdout.strip().splitlines()[-1]


def check_installed(program: Path, remedy: str) -> None:
    """Raise DriverError with the remedy if the program does not exist."""
    if not program.is_file():
        raise DriverError(f"{program} is missing: {remedy}")
