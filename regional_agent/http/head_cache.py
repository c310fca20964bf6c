"""A head that comes again on its connection, but for a few values: what it was understood as then holds now.

Clients and engines begin every message of a connection with nearly the same bytes, and parsing them is a good part of
what carrying costs. So this compares bytes, and understands nothing itself: what it does not recognise to the last byte
goes to the parser. A head is the same but for values if each differing one stands alone on its line, is printable, and
belongs to a header that nothing else of the head depends on.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from regional_agent.http.messages import Header

MAX_HEAD_BYTES: Final = 4096
"""Longer ones are not remembered: each connection holds one."""

MAX_VALUE_BYTES: Final = 256

MAX_MISSES: Final = 8
"""A connection on which so many heads in a row were others than before is no longer compared: one of a proxy, say, that
mixes what its clients send."""

_LOOKS: Final = {b"content-length": re.compile(rb"0|[1-9][0-9]{0,7}")}
_VALUE: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")

Gap = tuple[int, re.Pattern[bytes], bytes, bytes]
"""Which header it is of, what a value there has to look like, and what follows it: with the value that was there, and
without."""


def raw_head(read: bytes, begins: bytes) -> bytes:
    """The head that a read begins with, up to its empty line, if it may be remembered; else nothing.

    Args:
        begins: how it must begin: the parser passes over empty lines before it.
    """
    end = read.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    return read[: end + 4] if end >= 0 and read.startswith(begins) else b""


class RepeatedHead:
    """One head, with gaps where values may differ."""

    __slots__ = ("_begin", "_by_name", "_gaps", "_headers", "_may_differ", "raw")

    def __init__(self, raw: bytes, headers: list[Header], may_differ: Container[bytes]) -> None:
        """Remember a head that the parser has accepted.

        Args:
            raw: its first line, its header lines and the empty line.
            headers: what the parser made of it, names in lower case; not to be changed any more.
            may_differ: names of headers whose value may be another.
        """
        self.raw = raw
        self._headers = headers
        self._by_name = dict(headers)
        self._may_differ = may_differ
        self._begin = raw
        self._gaps: list[Gap] | None = None

    def again(self, data: bytes) -> tuple[list[Header], dict[bytes, bytes], int] | None:
        """The headers where `data` begins with this head but for values, in order and by name, and where it ends.

        None for another head.
        """
        gaps = self._gaps
        if gaps is None:
            gaps = self._gaps = self._cut()
        if not gaps or not data.startswith(self._begin):
            return None
        at, headers, by_name = len(self._begin), self._headers.copy(), self._by_name.copy()
        for place, looks, same, after in gaps:
            # Most values are what they were.
            if data.startswith(same, at):
                at += len(same)
                continue
            end = data.find(b"\r\n", at, at + MAX_VALUE_BYTES)
            value = data[at:end]
            if end < 0 or looks.fullmatch(value) is None or not data.startswith(after, end):
                return None
            name = headers[place][0]
            headers[place] = (name, value)
            by_name[name] = value
            at = end + len(after)
        return headers, by_name, at

    def _cut(self) -> list[Gap]:
        """Find the gaps, once a head has come that is not the same altogether."""
        raw, lines = self.raw, self.raw.split(b"\r\n")
        if len(lines) != len(self._headers) + 3:
            return []
        names = [name for name, _ in self._headers]
        spans: list[tuple[int, int, int]] = []
        at = len(lines[0]) + 2
        for place, (name, value) in enumerate(self._headers):
            line = lines[place + 1]
            end = at + len(line)
            alone = name in self._may_differ and names.count(name) == 1
            if alone and value and line[len(name) :] == b": " + value:
                spans.append((place, end - len(value), end))
            at = end + 2
        if not spans:
            return []
        self._begin = raw[: spans[0][1]]
        nexts = [begin for _, begin, _ in spans[1:]] + [len(raw)]
        return [
            (place, _LOOKS.get(self._headers[place][0], _VALUE), raw[begin:after], raw[end:after])
            for (place, begin, end), after in zip(spans, nexts, strict=True)
        ]
