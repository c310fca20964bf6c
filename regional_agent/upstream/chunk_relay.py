"""Forwards response chunks to a client without parsing their framing.

Engines send each token as one chunk in one TCP segment. A read that is exactly one chunk, in the framing of this proxy,
is written to the client unchanged: the first line of the read is compared with the size line for a body of that length.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.answers.answer_parser import AnswerParser
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

    __slots__ = ("_batcher", "_parser", "_transport", "gaps", "last", "sent_bytes")

    def __init__(
        self,
        batcher: WriteBatcher,
        transport: asyncio.Transport,
        gaps: StreamGaps | None,
        parser: AnswerParser | None,
    ) -> None:
        """Write to `transport` through `batcher`.

        Args:
            gaps: measures the stream; None if it is not sampled.
            parser: reads the stream; None if it is not read.
        """
        self._batcher = batcher
        self._transport = transport
        self._parser = parser
        self.gaps = gaps
        self.sent_bytes = 0
        """Bytes written since the owner last reset this counter."""
        self.last = b""
        """The last chunk since the owner last reset `sent_bytes`."""

    def forward(self, chunk: bytes) -> None:
        """Send a chunk, framing included, to the client."""
        parser = self._parser
        if parser is not None and not parser.skim_chunk(chunk):
            begin = chunk.find(_END) + len(_END)
            body = chunk[begin : -len(_END)]
            forwarded = parser.feed(body)
            if forwarded is not body:
                if not forwarded:
                    return
                chunk = b"%x\r\n%b\r\n" % (len(forwarded), forwarded)
        self.sent_bytes += len(chunk)
        self.last = chunk
        if self.gaps is not None:
            self.gaps.wrote()
        self._batcher.write(self._transport, chunk)
