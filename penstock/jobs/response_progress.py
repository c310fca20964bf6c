"""The progress of a response that arrives: its size, and what the engine reports in events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.jobs.batches.line_splitter import LineSplitter, LineTooLong

MAX_EVENT_BYTES: Final = 64 * 1024
"""Size (bytes) of a line of a response from which its events are not read any more."""

_EVENTS: Final = (b"text/event-stream", b"application/x-ndjson", b"application/jsonl")


class _Event(msgspec.Struct):
    progress: Any = None


_events: Final = msgspec.json.Decoder(_Event)


class ResponseProgress:
    """Reads one response, or several attempts one after the other."""

    def __init__(self) -> None:
        """Start without a response."""
        self.received_bytes = 0
        self.reported: float | None = None
        """The last number `progress` at the top of an event, as the engine reports it."""
        self._splitter: LineSplitter | None = None
        self._headers: Mapping[bytes, bytes] | None = None

    def add(self, headers: Mapping[bytes, bytes], part: bytes) -> None:
        """Read a part of the body of the response with `headers`."""
        if headers is not self._headers:
            self._headers, self.received_bytes, self.reported = headers, 0, None
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
