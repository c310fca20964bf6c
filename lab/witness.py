"""The residency witness: counts, from what engines wrote down, the requests that reached a region they may not touch.

Independent on purpose. It shares no code with what it judges: not the router, not the plan, not even the engine that
writes the files; what was required is what the client said, not what any agent made of it. A line is one JSON object
with `event` (arrived, started, finished, aborted), `t` (Unix time, s), `request_id`, `region`, `endpoint` and
`required` (regions between commas, or null).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUFFIX = ".jsonl"
EVENTS = frozenset({"arrived", "started", "finished", "aborted"})


class WitnessError(Exception):
    """A file is invalid, so its content cannot be verified. The message names file and line."""


@dataclass(frozen=True)
class Sighting:
    """A request reached an engine."""

    t: float
    """Unix time (s)."""
    request_id: str | None
    region: str
    endpoint: str
    required: frozenset[str] | None
    """The regions that may touch it; None where the client named none."""

    @property
    def violates(self) -> bool:
        """Whether it is somewhere that it may not be. An empty requirement permits no region at all."""
        return self.required is not None and self.region not in self.required


@dataclass
class Findings:
    """Everything that was read so far."""

    checked: int = 0
    """Arrivals that came with a requirement."""
    unrequired: int = 0
    """Arrivals that came without one, of which nothing can be said."""
    violations: list[Sighting] = field(default_factory=list)
    arrived: Counter[str] = field(default_factory=Counter)
    """How often each request id reached an engine, any engine."""
    started: Counter[str] = field(default_factory=Counter)
    """How often its prefill began."""
    finished: Counter[str] = field(default_factory=Counter)
    """How often it was generated whole."""
    aborted: Counter[str] = field(default_factory=Counter)
    """How often it was dropped by an engine before that."""
    torn_lines: int = 0
    """Files that end in the middle of a line, as after a SIGKILL."""


class Witness:
    """Reads a directory of witness files, again and again, each time only what has been added."""

    def __init__(self, directory: Path) -> None:
        """A witness that has read nothing yet; the directory may come into being later."""
        self._directory = directory
        self._read_bytes: dict[Path, int] = {}
        self._lines: dict[Path, int] = {}
        self._findings = Findings()

    def read(self) -> tuple[Findings, list[Sighting]]:
        """Read on. The findings so far, and the arrivals that are new since the last time.

        Raises:
            WitnessError: on a line that is whole and yet not understood.
        """
        fresh: list[Sighting] = []
        torn = 0
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                *lines, rest = file.read().split(b"\n")
            torn += bool(rest)
            for line in lines:
                number = self._lines[path] = self._lines.get(path, 0) + 1
                self._take(_parse(line, f"{path}:{number}"), f"{path}:{number}", fresh)
                self._read_bytes[path] = self._read_bytes.get(path, 0) + len(line) + 1
        self._findings.torn_lines = torn
        return self._findings, fresh

    def _take(self, record: dict[str, Any], where: str, fresh: list[Sighting]) -> None:
        findings, event = self._findings, record["event"]
        try:
            sighting = Sighting(
                float(record["t"]),
                _text(record["request_id"]),
                str(record["region"]),
                str(record["endpoint"]),
                _regions(_text(record["required"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WitnessError(f"{where}: {error!r} in a witness line") from None
        if sighting.request_id is not None:
            counted: Counter[str] = getattr(findings, event)
            counted[sighting.request_id] += 1
        if event == "arrived":
            fresh.append(sighting)
            if sighting.required is None:
                findings.unrequired += 1
            else:
                findings.checked += 1
            if sighting.violates:
                findings.violations.append(sighting)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        raise WitnessError(f"{where}: not JSON; was the file changed by something else?") from None
    if not isinstance(record, dict) or record.get("event") not in EVENTS:
        raise WitnessError(f"{where}: not a witness line")
    return record


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(value)
    return value


def _regions(required: str | None) -> frozenset[str] | None:
    if required is None:
        return None
    return frozenset(name.strip() for name in required.split(",") if name.strip())
