"""The residency witness: counts the requests that reached a region outside their residency, from the logs of engines.

The witness is independent by design: it shares no code with the router, the planner or the engine that writes the
files, and the required regions are those that the client sent, not those that an agent computed. A line is one JSON
object with `event` (arrived, started, finished, aborted), `t` (Unix time, s), `request_id`, `region`, `endpoint` and
`required` (comma-separated regions, or null). The lines of the end of a generation also have `prompt_tokens` and
`output_tokens`.
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
    """One event of a request at an engine."""

    t: float
    """Unix time (s)."""
    request_id: str | None
    region: str
    endpoint: str
    required: frozenset[str] | None
    """Regions that may process the request; None if the client sent no requirement."""

    @property
    def violates(self) -> bool:
        """Whether the requirement excludes the region. An empty requirement permits no region."""
        return self.required is not None and self.region not in self.required


@dataclass(frozen=True)
class Generated:
    """The tokens of one generation at its end."""

    event: str
    """`finished` or `aborted`. A generation that was killed has no record."""
    prompt_tokens: int
    output_tokens: int


@dataclass
class Findings:
    """Totals of all lines read so far."""

    checked: int = 0
    """Arrivals with a residency requirement."""
    violations: list[Sighting] = field(default_factory=list)
    arrived: Counter[str] = field(default_factory=Counter)
    """Number of arrivals at any engine, by request id."""
    started: Counter[str] = field(default_factory=Counter)
    """Number of prefill starts, by request id."""
    finished: Counter[str] = field(default_factory=Counter)
    """Number of complete generations, by request id."""
    aborted: Counter[str] = field(default_factory=Counter)
    """Number of aborted generations, by request id."""
    generated: dict[str, list[Generated]] = field(default_factory=dict)
    """The tokens of all generations, by request id."""


class Witness:
    """Reads a directory of witness files incrementally: each read covers only the lines added since the last read."""

    def __init__(self, directory: Path) -> None:
        """Create a witness; the directory may be created later."""
        self._directory = directory
        self._read_bytes: dict[Path, int] = {}
        self._lines: dict[Path, int] = {}
        self._findings = Findings()

    def read(self) -> tuple[Findings, list[Sighting]]:
        """Read the added lines. Returns the findings so far and the arrivals since the last call.

        Raises:
            WitnessError: a complete line is invalid.
        """
        fresh: list[Sighting] = []
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                # After a SIGKILL the last line is incomplete.
                *lines, _ = file.read().split(b"\n")
            for line in lines:
                number = self._lines[path] = self._lines.get(path, 0) + 1
                self._take(_parse(line, f"{path}:{number}"), f"{path}:{number}", fresh)
                self._read_bytes[path] = self._read_bytes.get(path, 0) + len(line) + 1
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
            tokens = None
            if "output_tokens" in record:
                tokens = Generated(event, int(record["prompt_tokens"]), int(record["output_tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise WitnessError(f"{where}: {error!r} in a witness line") from None
        if sighting.request_id is not None:
            counted: Counter[str] = getattr(findings, event)
            counted[sighting.request_id] += 1
            if tokens is not None:
                findings.generated.setdefault(sighting.request_id, []).append(tokens)
        if event == "arrived":
            fresh.append(sighting)
            findings.checked += sighting.required is not None
            if sighting.violates:
                findings.violations.append(sighting)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        raise WitnessError(f"{where}: not JSON; did another program change the file?") from None
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
