"""Forwards response chunks to a client without parsing them.

Engines send each token as one chunk in one TCP segment. A read that is exactly one chunk, in the framing of this proxy,
is written to the client unchanged: the first line of the read is compared with the size line for a body of that length.
"""

from __future__ import annotations

import asyncio
from typing import Final

from regional_agent.http.write_batcher import WriteBatcher
from regional_agent.telemetry.stream_gaps import StreamGaps

MAX_BODY_BYTES: Final = 4096
"""Maximum size (bytes) of the body of a relayed chunk. Larger chunks are rare, and are parsed."""

_END: Final = b"\r\n"


def _size_lines() -> dict[int, bytes]:
    """Return the first line of a chunk, by the length of the whole chunk."""
    lines = [(b"%x\r\n" % size_bytes, size_bytes) for size_bytes in range(1, MAX_BODY_BYTES + 1)]
    return {len(line) + size_bytes + len(_END): line for line, size_bytes in lines}


_SIZE_LINES: Final = _size_lines()
_NO_LINE: Final = ()
"""With no alternatives, `startswith` returns False."""


def is_whole_chunk(data: bytes) -> bool:
    """Whether `data` is exactly one chunk with a body; the last chunk of a response has none."""
    return data.startswith(_SIZE_LINES.get(len(data), _NO_LINE)) and data.endswith(_END)


class ChunkRelay:
    """Writes chunks to one client and counts their bytes.

    The object is small, because with thousands of streams the CPU caches hold only a part of the objects.
    """

    __slots__ = ("_batcher", "_transport", "before_last", "gaps", "last", "sent_bytes")

    def __init__(self, batcher: WriteBatcher, transport: asyncio.Transport, gaps: StreamGaps | None) -> None:
        """Write to `transport` through `batcher`; `gaps` measures the stream, None if it is not sampled."""
        self._batcher = batcher
        self._transport = transport
        self.gaps = gaps
        self.sent_bytes = 0
        """Bytes written since the owner last reset this counter."""
        self.last = self.before_last = b""
        """The last two chunks since the owner last reset `sent_bytes`."""

    def forward(self, chunk: bytes) -> None:
        """Send a chunk, framing included, to the client."""
        self.sent_bytes += len(chunk)
        self.before_last, self.last = self.last, chunk
        if self.gaps is not None:
            self.gaps.wrote()
        self._batcher.write(self._transport, chunk)
