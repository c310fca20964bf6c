"""Finds where a chunked body ends in the bytes received, which the parser does not report (RFC 9112, section 7.1)."""

from __future__ import annotations

from typing import Final

_MAX_SIZE_CHARS: Final = 32
"""Characters of a line that are kept: more than a chunk size that the parser accepts has."""


class ChunkedEnd:
    """The framing of one chunked body, in as many parts as it arrives. Malformed framing is left to the parser."""

    __slots__ = ("_in_trailers", "_line", "_skip_bytes")

    def __init__(self) -> None:
        """Start before the first chunk."""
        self._line = b""
        """The beginning of an incomplete line."""
        self._skip_bytes = 0
        """Bytes of a chunk's data, and of its line end, that have not arrived."""
        self._in_trailers = False

    def find(self, part: bytes, at: int) -> int:
        """Process a further part from an offset on; returns the offset after the body's end, or -1 if it is missing."""
        while True:
            skipped = min(self._skip_bytes, len(part) - at)
            self._skip_bytes -= skipped
            at += skipped
            end = part.find(b"\n", at) + 1
            if self._skip_bytes or end == 0:
                self._line = (self._line + part[at : at + _MAX_SIZE_CHARS])[:_MAX_SIZE_CHARS]
                return -1
            line = self._line + part[at : min(end, at + _MAX_SIZE_CHARS)]
            self._line, at = b"", end
            if self._in_trailers:
                if line == b"\r\n":
                    return at
                continue
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                return -1
            self._in_trailers = size == 0
            self._skip_bytes = size + len(b"\r\n") if size else 0
