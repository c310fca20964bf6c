"""Splits a stream of server-sent events, or of lines, into complete records, regardless of the boundaries of its parts.

Format of the events: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import re
from typing import Final

MAX_EVENT_BYTES: Final = 256 * 1024
"""Maximum size (bytes) of an incomplete event that is held."""

_EVENT_END: Final = b"\n\n"
_LINE_END: Final = b"\n"
_CR: Final = b"\r"
_BOUNDARY: Final = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_BOUNDARY: Final = re.compile(rb"\n")
MAX_BOUNDARY_BYTES: Final = 4
"""Maximum size (bytes) of what ends a record."""
KEEP_ALIVES: Final = frozenset({b"ping", b"keepalive"})
"""Names of events that are comments in all but form, of Anthropic's and of OpenAI's API."""
_DATA: Final = b"data: "
_DATA_FIELD: Final = re.compile(rb"(?:^|[\r\n])(?:\xef\xbb\xbf)?data:")
MAX_FIELDS_BYTES: Final = 256
"""Size (bytes) of the beginning of a long event in which its data are searched."""


class EventSplitter:
    """Splits one stream into server-sent events, or into lines."""

    def __init__(self, *, lines: bool = False) -> None:
        """Split into events; with `lines`, split into lines."""
        self._boundary = _LINE_BOUNDARY if lines else _BOUNDARY
        self._end = _LINE_END if lines else _EVENT_END
        self.rest = b""
        """The incomplete event at the end of the received stream; empty without one."""
        self._taken_end = b""
        """The end of a record that was taken, so far: what ends a record may be split over two reads."""

    @property
    def overflows(self) -> bool:
        """Whether the incomplete event is too long to be held."""
        return len(self.rest) > MAX_EVENT_BYTES

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that `chunk` completes, each with the empty line that ends the event."""
        end = self._end
        if not self.rest and chunk.endswith(end) and chunk.find(end) == len(chunk) - len(end) and chunk.find(_CR) < 0:
            # Most engines send one event at a time, so the search below is rarely needed.
            return [chunk]
        searched = max(0, len(self.rest) - MAX_BOUNDARY_BYTES)
        data = self.rest + chunk
        events, start = [], 0
        while (boundary := self._boundary.search(data, max(start, searched))) is not None:
            end_at = boundary.end()
            events.append(data[start:end_at])
            start = end_at
        self.rest = data[start:]
        return events

    def take_long(self) -> bytes:
        """Return the incomplete record, and discard it; `end_in` finds its end."""
        rest = self.take_rest()
        self._taken_end = rest[-MAX_BOUNDARY_BYTES + 1 :]
        return rest

    def end_in(self, part: bytes) -> int:
        """Return the offset in `part` of the end of the record that `take_long` has begun; -1 if the record goes on."""
        before = self._taken_end
        for found in self._boundary.finditer(before + part):
            if found.end() > len(before):
                return found.end() - len(before)
        self._taken_end = (before + part)[-MAX_BOUNDARY_BYTES + 1 :]
        return -1

    def take_rest(self) -> bytes:
        """Return the incomplete event, and discard it."""
        rest, self.rest = self.rest, b""
        return rest


def data_in(beginning: bytes) -> bytes:
    """Return the data so far of an event that has not ended; without such a field, all of it."""
    found = _DATA_FIELD.search(beginning[:MAX_FIELDS_BYTES])
    at = 0 if found is None else found.end()
    return beginning[at:]


def event_fields(event: bytes) -> tuple[bytes, bytes | None]:
    """Return the name and the data of an event; the name is empty, and the data None, if the event has none.

    llama.cpp sends an error as a field `error` (tools/server/utils.hpp), which is read as an event of that name.
    """
    if event.startswith(_DATA) and event.find(_LINE_END) == len(event) - len(_EVENT_END):
        return b"", event[len(_DATA) : -len(_EVENT_END)]
    name, data = b"", None
    for line in event.splitlines():
        if line.startswith(b"data:"):
            text = line[5:].removeprefix(b" ")
            data = text if data is None else data + _LINE_END + text
        elif line.startswith(b"event:"):
            name = line[6:].strip()
        elif line.startswith(b"error:"):
            name, data = b"error", line[6:].strip()
    return name, data
