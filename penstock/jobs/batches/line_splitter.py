"""Splits a file of lines that arrives in parts; keeps no more than one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_LINE_BYTES: Final = 10_000_000
"""Maximum size (bytes) of a line."""


_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""Programs for Windows write it at the beginning of a file."""


class LineTooLong(Exception):
    """A line is longer than MAX_LINE_BYTES."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} is longer than {MAX_LINE_BYTES} bytes")
        self.line = line


class LineSplitter:
    """Splits at LF. Lines keep no line end, and the first one no byte order mark; empty lines count, and are not
    returned."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        """Start before the first line."""
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._max_bytes = max_bytes
        self.line = 0
        """Number of complete lines so far; the first line has the number 1."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Return the number and content of every line that is now complete.

        Raises:
            LineTooLong: a line exceeds the limit, complete or not.
        """
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            yield from self._complete(data[start:end])
            start = end + 1
        if start < len(data):
            self._rest.append(data[start:])
            self._rest_bytes += len(data) - start
            if self._rest_bytes > self._max_bytes:
                raise LineTooLong(self.line + 1)

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """Return the last line if it has no line end. Raises LineTooLong."""
        if self._rest:
            yield from self._complete(b"")

    def _complete(self, end: bytes) -> Iterator[tuple[int, bytes]]:
        self.line += 1
        if self._rest:
            self._rest.append(end)
            end = b"".join(self._rest)
            self._rest, self._rest_bytes = [], 0
        if len(end) > self._max_bytes:
            raise LineTooLong(self.line)
        if self.line == 1:
            end = end.removeprefix(_BYTE_ORDER_MARK)
        end = end.removesuffix(b"\r")
        if end and not end.isspace():
            yield self.line, end
