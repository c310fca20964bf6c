"""Forwards response chunks to a client without parsing their framing.

Engines send each token as one chunk in one TCP segment. A read that is exactly one chunk, in the framing of this proxy,
is written to the client unchanged: the first line of the read is compared with the size line for a body of that length.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.answers.answer_parser import AnswerParser
from penstock.continuation.next_events import NextEvents
from regional_agent.http.write_batcher import WriteBatcher
from regional_agent.telemetry.stream_gaps import StreamGaps

MAX_BODY_BYTES: Final = 4096
"""Maximum size (bytes) of the body of a relayed chunk. Larger chunks are rare, and are parsed."""

SIZE_LINES: Final = [b"%x\r\n" % size_bytes for size_bytes in range(MAX_BODY_BYTES + 1)]
"""The first lines of chunks, by the length of the body, up to MAX_BODY_BYTES."""


class ChunkRelay:
    """Writes chunks to one client and counts their bytes.

    The object is small, because with thousands of streams the CPU caches hold only a part of the objects.
    """

    def __init__(
        self,
        batcher: WriteBatcher,
        transport: asyncio.Transport,
        gaps: StreamGaps | None,
        parser: AnswerParser | None,
        expected: NextEvents | None = None,
    ) -> None:
        """Write to `transport` through `batcher`.

        Args:
            gaps: measures the stream; None if it is not sampled.
            parser: reads the stream; None if it is not read.
            expected: takes the chunks that are relayed; None if all are.
        """
        self._batcher = batcher
        self._transport = transport
        self._parser = parser
        self._expected = expected
        self.gaps = gaps
        self.sent_bytes = 0
        """Bytes written since the owner last reset this counter."""
        self.last = b""
        """The last chunk since the owner last reset `sent_bytes`."""

    def forward(self, chunk: bytes, begin: int) -> bool:
        """Send a chunk, framing included, whose body begins at `begin`, to the client; False if it is not taken."""
        parser, expected = self._parser, self._expected
        if expected is not None:
            sent = expected.take(chunk, begin)
            if not sent:
                return False
            if sent is not expected.last:
                chunk = b"%b%b\r\n" % (SIZE_LINES[len(sent)], sent)
        elif parser is not None and not parser.skim_chunk(chunk, begin):
            body = chunk[begin:-2]
            forwarded = parser.feed(body)
            if forwarded is not body:
                if not forwarded:
                    return True
                chunk = b"%x\r\n%b\r\n" % (len(forwarded), forwarded)
        self.sent_bytes += len(chunk)
        self.last = chunk
        if self.gaps is not None:
            self.gaps.wrote()
        self._batcher.write(self._transport, chunk)
        return True
