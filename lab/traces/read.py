"""Reads a trace of any supported format, which is detected from the content of the file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

from lab.traces.azure import COLUMNS, looks_like_azure, read_azure
from lab.traces.lines import read_lines
from lab.traces.mooncake import looks_like_mooncake, read_mooncake
from lab.traces.trace import TraceError, TraceRequest

KNOWN_FORMATS = f"an Azure CSV ({','.join(COLUMNS)}) or Mooncake JSON lines"


def read_trace(path: Path, rng: Random, window_s: float | None = None) -> list[TraceRequest]:
    """Return the requests of a trace in order of arrival.

    Args:
        path: an Azure 2023 CSV or a Mooncake JSONL file.
        rng: distributes arrivals that were recorded in batches.
        window_s: end (s) of the read part of the trace, exclusive; None reads the whole trace.

    Raises:
        TraceError: the file is missing, empty, of an unknown format, or invalid in the read part.
    """
    trace: list[TraceRequest] = []
    for request in _requests(path, rng):
        if window_s is not None and request.at_s >= window_s:
            break
        trace.append(request)
    if not trace:
        if window_s is None:
            raise TraceError(path, "has a header but no requests", f"give {KNOWN_FORMATS}")
        raise TraceError(path, f"no request in the first {window_s:g} s", "take a longer window")
    return trace


def _requests(path: Path, rng: Random) -> Iterator[TraceRequest]:
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(path, "the file is empty", f"give {KNOWN_FORMATS}")
    lines = chain([first], lines)
    if looks_like_mooncake(first[1]):
        return read_mooncake(path, lines, rng)
    if looks_like_azure(first[1]):
        return read_azure(path, lines)
    raise TraceError(path, "the format is not known", f"give {KNOWN_FORMATS}", first[0])
