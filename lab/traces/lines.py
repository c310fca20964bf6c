"""Reads a text file by line, with line numbers and bounds; errors name the file and the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.traces.trace import TraceError

MAX_LINE_BYTES = 1_048_576
"""A Mooncake line of a million-token prompt is about 20 kB; a longer line is not from a trace."""

NumberedLine = tuple[int, str]
"""Line number from 1, and the line without its terminator."""


def read_lines(path: Path) -> Iterator[NumberedLine]:
    """Yield the lines of `path` that are not blank.

    Raises:
        TraceError: the file cannot be opened or read, a line is too long, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    problem = f"the line is longer than {MAX_LINE_BYTES} bytes"
                    raise TraceError(path, problem, "give a trace in CSV or JSON lines", number)
                text = _decode(path, number, raw)
                if text:
                    yield number, text
    except OSError as error:
        problem = error.strerror or str(error)
        raise TraceError(path, problem, "give the path of a trace that can be read") from None


def _decode(path: Path, number: int, raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} of the line is not UTF-8"
        raise TraceError(path, problem, "give a text file, not a compressed one", number) from None
    return text.strip()
