"""The engine's log for the residency witness: records each request on arrival, before any processing.

Each line is one JSON object and one write to a file in append mode, so that written lines survive a SIGKILL.
`lab.witness` reads these files and shares no code with this module or with the components that it checks.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path

import msgspec


class WitnessBroken(Exception):
    """A line could not be written completely. An engine without a witness log must not serve."""


class WitnessEvent(StrEnum):
    """An event of a request at an engine."""

    ARRIVED = "arrived"
    """The head of the request arrived; the request has reached this region, whatever its result."""
    STARTED = "started"
    """Prefill started."""
    FINISHED = "finished"
    """All tokens were generated."""
    ABORTED = "aborted"
    """The request waited or started, but not all tokens were generated."""


class WitnessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the log."""

    event: WitnessEvent
    t: float
    """Unix time (s)."""
    request_id: str | None
    """Value of the x-request-id header; None if absent."""
    region: str
    endpoint: str
    required: str | None
    """Value of the x-lab-residency header (comma-separated regions); None if absent."""
    prompt_tokens: int | None = None
    """Tokens of the prompt; in records of the end of a generation, like `output_tokens`."""
    output_tokens: int | None = None
    """Tokens that were generated, whether or not the response delivered them."""


class WitnessLog:
    """Log file of one process. Every start creates a new file, so only the last line of a file can be incomplete."""

    def __init__(self, directory: Path, region: str) -> None:
        """Create a log file.

        Raises:
            OSError: the directory cannot be created or written to.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{region}-{os.getpid()}-{time.time_ns()}.jsonl"
        self._region = region
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)

    def write(
        self,
        event: WitnessEvent,
        endpoint: str,
        request_id: str | None,
        required: str | None,
        tokens: tuple[int, int] | None = None,
    ) -> None:
        """Append one line; `tokens` are those of the prompt and of the output at the end of a generation.

        Raises:
            WitnessBroken: the line could not be written completely.
        """
        record = WitnessRecord(event, time.time(), request_id, self._region, endpoint, required, *(tokens or ()))
        line = msgspec.json.encode(record) + b"\n"
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise WitnessBroken(f"{self.path}: cannot be written: {error.strerror}") from error
        if written != len(line):
            raise WitnessBroken(f"{self.path}: a line was written only in part; is the disk full?")

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        os.close(self._file)
