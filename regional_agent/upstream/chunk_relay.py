"""The way of chunks that pass as they came: one small object, since of thousands of streams none is in a cache."""

from __future__ import annotations

import asyncio

from regional_agent.http.write_batcher import Outgoing


class Relay:
    """Passes chunks on to one client, and keeps what has passed since it was last asked for that."""

    __slots__ = ("_outgoing", "_transport", "before_last", "last", "sent_bytes")

    def __init__(self, outgoing: Outgoing, transport: asyncio.Transport) -> None:
        """Nothing has passed."""
        self._outgoing = outgoing
        self._transport = transport
        self.sent_bytes = 0
        self.last = self.before_last = b""

    def pass_on(self, chunk: bytes) -> None:
        """Send a chunk to the client, with its framing."""
        self.sent_bytes += len(chunk)
        self.before_last, self.last = self.last, chunk
        self._outgoing.write(self._transport, chunk)
