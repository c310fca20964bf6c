"""The progress of a response that arrives: its size, and what an engine reports in events, or a converter before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.jobs.batches.line_splitter import LineSplitter, LineTooLong

MAX_EVENT_BYTES: Final = 64 * 1024
"""Size (bytes) of a line of a response from which its events are not read any more."""

PROGRESS_HEADER: Final = b"x-penstock-progress"
"""Header of an interim response (102 of RFC 2518) with the progress of a request that a converter runs, from 0 to 1. In
a request, which only agents send, it asks for such responses."""

_PROGRESS: Final = re.compile(rb"[01]\.[0-9]{2}")

_EVENTS: Final = (b"text/event-stream", b"application/x-ndjson", b"application/jsonl")


class _Event(msgspec.Struct):
    progress: Any = None


_events: Final = msgspec.json.Decoder(_Event)


def interim_head(progress: float) -> bytes:
    """Return the interim response that reports the progress (0-1) of a request."""
    return b"HTTP/1.1 102 Processing\r\n%b: %.2f\r\n\r\n" % (PROGRESS_HEADER, progress)


def interim_progress(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the progress (0-1) in the head of an interim response; None without one."""
    value = headers.get(PROGRESS_HEADER, b"")
    return min(1.0, float(value)) if _PROGRESS.fullmatch(value) else None


class ResponseProgress:
    """Reads one response, or several attempts one after the other."""

    def __init__(self) -> None:
        """Start without a response."""
        self.received_bytes = 0
        self.reported: float | None = None
        """The last number `progress` at the top of an event, or in an interim response."""
        self._splitter: LineSplitter | None = None
        self._headers: Mapping[bytes, bytes] | None = None

    def add(self, headers: Mapping[bytes, bytes], part: bytes) -> None:
        """Read a part of the body of the response with `headers`, or an interim response, which has no body."""
        if headers is not self._headers:
            progress, follows_interim = interim_progress(headers), PROGRESS_HEADER in (self._headers or ())
            self._headers, self.received_bytes = headers, 0
            if progress is not None or not follows_interim:
                self.reported = progress
            has_events = headers.get(b"content-type", b"").lower().startswith(_EVENTS)
            self._splitter = LineSplitter(MAX_EVENT_BYTES) if has_events else None
        self.received_bytes += len(part)
        if self._splitter is None:
            return
        try:
            for _, line in self._splitter.feed(part):
                self._read(line.removeprefix(b"data:"))
        except LineTooLong:
            self._splitter = None

    def _read(self, line: bytes) -> None:
        try:
            progress = _events.decode(line).progress
            if isinstance(progress, int | float) and not isinstance(progress, bool):
                self.reported = float(progress)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
            return
