"""Reads a text file by lines of limited length; errors state the file and the line number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.traces.trace import TraceError

MAX_LINE_BYTES = 1_048_576
"""Maximum length (bytes) of a line. A Mooncake line of a prompt of a million tokens has about 20 kB."""

NumberedLine = tuple[int, str]
"""Line number from 1, and the line without its terminator."""


def read_lines(path: Path) -> Iterator[NumberedLine]:
    """Yield the non-blank lines of `path`.

    Raises:
        TraceError: the file cannot be opened or read, or a line exceeds MAX_LINE_BYTES or is not UTF-8.
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
        raise TraceError(path, problem, "give the path of a readable trace") from None


def _decode(path: Path, number: int, raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} of the line is not UTF-8"
        raise TraceError(path, problem, "give an uncompressed text file", number) from None
    return text.strip()
