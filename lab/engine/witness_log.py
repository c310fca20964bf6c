"""The engine's side of the residency witness: what reached it, written down before anything else happens to it.

One JSON object a line, each line one write to a file opened for appending, so that what was written survives a SIGKILL.
`lab.witness` reads these files and shares no code with this module, nor with anything that it watches over.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path

import msgspec


class WitnessBroken(Exception):
    """A line could not be written whole. An engine that cannot testify must not serve."""


class WitnessEvent(StrEnum):
    """What can happen to a request at an engine."""

    ARRIVED = "arrived"
    """Its head is here: from now on it has touched this region, whatever becomes of it."""
    STARTED = "started"
    """Its prefill began."""
    FINISHED = "finished"
    """It was generated whole."""
    ABORTED = "aborted"
    """It started or waited but was not generated whole."""


class WitnessRecord(msgspec.Struct, frozen=True):
    """One line."""

    event: WitnessEvent
    t: float
    """Unix time (s)."""
    request_id: str | None
    """As the x-request-id header had it; None without one."""
    region: str
    endpoint: str
    required: str | None
    """As the x-lab-residency header had it: regions between commas; None without one."""


class WitnessLog:
    """One process's file. Made new at every start, so that a torn line can only be the last of its file."""

    def __init__(self, directory: Path, region: str) -> None:
        """Start a file.

        Raises:
            OSError: the directory cannot be made or written to.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{region}-{os.getpid()}-{time.time_ns()}.jsonl"
        self._region = region
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)

    def write(self, event: WitnessEvent, endpoint: str, request_id: str | None, required: str | None) -> None:
        """Append one line.

        Raises:
            WitnessBroken: it could not be written whole.
        """
        record = WitnessRecord(event, time.time(), request_id, self._region, endpoint, required)
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
