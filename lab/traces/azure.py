"""Reads the Azure LLM inference trace of 2023: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Source: https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023; Patel et al., Splitwise, ISCA 2024).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from lab.traces.lines import NumberedLine
from lab.traces.trace import TraceError, TraceRequest

TIMESTAMP, CONTEXT_TOKENS, GENERATED_TOKENS = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
COLUMNS = (TIMESTAMP, CONTEXT_TOKENS, GENERATED_TOKENS)

MAX_TOKENS = 10_000_000
"""Maximum number of tokens in a valid trace; it exceeds every context window."""

_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")


def looks_like_azure(first_line: str) -> bool:
    """Whether `first_line` is the header of an Azure trace: it names at least one of the columns."""
    return any(name in COLUMNS for name in _cells(first_line))


def read_azure(path: Path, lines: Iterator[NumberedLine]) -> Iterator[TraceRequest]:
    """Yield the requests of an Azure trace in order; the first request arrives at 0 s.

    Args:
        path: name of the file in errors.
        lines: lines of the file, including the header.

    Raises:
        TraceError: the header lacks a column, a field is invalid, or the time of a line is before the previous line.
    """
    number, header = next(lines)
    names = _cells(header)
    for wanted in COLUMNS:
        if wanted not in names:
            raise TraceError(path, "the column is missing", f"the header must be {','.join(COLUMNS)}", number, wanted)
    where = [names.index(wanted) for wanted in COLUMNS]
    began: tuple[float, float] | None = None
    before = 0.0
    for number, line in lines:
        cells = _cells(line)
        if len(cells) != len(names):
            problem = f"{len(cells)} fields where the header has {len(names)}"
            raise TraceError(path, problem, "complete or delete the line", number)
        whole_s, fraction_s = _instant(path, number, cells[where[0]])
        began = began or (whole_s, fraction_s)
        at_s = (whole_s - began[0]) + (fraction_s - began[1])
        if at_s < before:
            raise TraceError(path, "goes back in time", "sort the file by this column", number, TIMESTAMP)
        before = at_s
        yield TraceRequest(
            at_s,
            _tokens(path, number, CONTEXT_TOKENS, cells[where[1]], least=1),
            _tokens(path, number, GENERATED_TOKENS, cells[where[2]], least=0),
        )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _instant(path: Path, line: int, text: str) -> tuple[float, float]:
    # The trace has seven fractional digits. Neither datetime nor a single float of Unix seconds preserves them.
    match = _INSTANT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        day, clock, fraction = match.groups()
        whole_s = datetime.fromisoformat(f"{day}T{clock}+00:00").timestamp()
    except ValueError:
        remedy = 'write it like "2023-11-16 18:15:46.6805900"'
        raise TraceError(path, f"{text[:40]!r} is not a time", remedy, line, TIMESTAMP) from None
    return whole_s, float(f"0.{fraction or 0}")


def _tokens(path: Path, line: int, field: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= MAX_TOKENS):
        remedy = f"it must be a whole number from {least} to {MAX_TOKENS}"
        raise TraceError(path, f"{text[:40]!r} is not a count of tokens", remedy, line, field)
    return int(text)
