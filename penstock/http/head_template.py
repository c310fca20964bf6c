"""Recognises a repeated head of a connection without parsing it.

Clients and engines begin every message of a connection with nearly the same bytes, and parsing them is a large part of
a proxy's cost. A template of the last head compares bytes and does not interpret them. Only header values may differ
from the last head: a value that is alone on its line, is printable, and belongs to a header on which nothing else in
the head depends. A head with any other difference goes to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from penstock.http.header_rules import Header

MAX_HEAD_BYTES: Final = 4096
"""Maximum size of a cached head, because each connection stores a head."""

MAX_VALUE_BYTES: Final = 256

MAX_MISSES: Final = 8
"""Number of consecutive misses after which a connection stops comparing heads: a proxy may send the requests of several
clients over one connection."""

_VALUE_PATTERNS: Final = {b"content-length": re.compile(rb"0|[1-9][0-9]{0,7}")}
_VALUE: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")

Gap = tuple[int, re.Pattern[bytes], bytes, bytes]
"""Position of the header, pattern of its value, and the bytes that follow: with the cached value, and without it."""


def raw_head(read: bytes, start: bytes) -> bytes:
    """Return the head at the beginning of a read, up to its empty line, if it can be cached; else empty.

    Args:
        start: bytes that the head must start with. The parser skips empty lines before a head; this function does not.
    """
    end = read.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    return read[: end + 4] if end >= 0 and read.startswith(start) else b""


class HeadTemplate:
    """The bytes of one head, with gaps for the values that may differ."""

    def __init__(self, raw: bytes, headers: list[Header], varying: Container[bytes]) -> None:
        """Make a template of a head that the parser has accepted.

        Args:
            raw: first line, header lines and the empty line.
            headers: the parsed headers, names in lower case; must not change afterwards.
            varying: names of headers whose value may differ.
        """
        self.raw = raw
        self._headers = headers
        self._by_name = dict(headers)
        self._varying = varying
        self._begin = raw
        self._gaps: list[Gap] | None = None

    def match(self, data: bytes) -> tuple[list[Header], dict[bytes, bytes], int] | None:
        """Return the headers in order and by name, and the end of the head; None if `data` begins with another head."""
        gaps = self._gaps
        if gaps is None:
            gaps = self._gaps = self._find_gaps()
        if not gaps or not data.startswith(self._begin):
            return None
        at, headers, by_name = len(self._begin), self._headers.copy(), self._by_name.copy()
        for position, pattern, same, after in gaps:
            # Most values are the same as in the cached head.
            if data.startswith(same, at):
                at += len(same)
                continue
            end = data.find(b"\r\n", at, at + MAX_VALUE_BYTES)
            value = data[at:end]
            if end < 0 or pattern.fullmatch(value) is None or not data.startswith(after, end):
                return None
            name = headers[position][0]
            headers[position] = (name, value)
            by_name[name] = value
            at = end + len(after)
        return headers, by_name, at

    def _find_gaps(self) -> list[Gap]:
        """Find the gaps. Called when the first head arrives that is not identical."""
        raw, lines = self.raw, self.raw.split(b"\r\n")
        if len(lines) != len(self._headers) + 3:
            return []
        names = [name for name, _ in self._headers]
        spans: list[tuple[int, int, int]] = []
        at = len(lines[0]) + 2
        for position, (name, value) in enumerate(self._headers):
            line = lines[position + 1]
            end = at + len(line)
            may_differ = name in self._varying and names.count(name) == 1
            if may_differ and value and line[len(name) :] == b": " + value:
                spans.append((position, end - len(value), end))
            at = end + 2
        if not spans:
            return []
        self._begin = raw[: spans[0][1]]
        nexts = [begin for _, begin, _ in spans[1:]] + [len(raw)]
        return [
            (position, _VALUE_PATTERNS.get(self._headers[position][0], _VALUE), raw[begin:after], raw[end:after])
            for (position, begin, end), after in zip(spans, nexts, strict=True)
        ]
