"""Collects the writes of one turn of the event loop and sends them at its end.

A write wakes the peer process if that process sleeps. Of writes that are sent together only the first causes a wake-up,
while each write that is sent alone causes a wake-up. A wake-up costs about a quarter of the CPU time of a request.
"""

from __future__ import annotations

import asyncio
from typing import Final

MAX_DELAYED_BYTES: Final = 32 * 1024
"""Maximum size of a delayed write. A larger write flushes the batch, because an event loop can read megabytes in one
turn, and back-pressure must take effect earlier."""


class WriteBatcher:
    """Pending writes, in order, of all connections of one listener or one pool."""

    def __init__(self) -> None:
        """Start with an empty batch."""
        self._pending: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Send `data` at the end of this turn. Call `flush` before closing a transport; aborting needs no flush."""
        if not self._pending:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self.flush)
        self._pending.append((transport, data))
        if len(data) > MAX_DELAYED_BYTES:
            self.flush()

    def write_eof(self, transport: asyncio.WriteTransport) -> None:
        """Half-close `transport` after the pending writes; close it where it has no half-close (TLS)."""
        self.flush()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def flush(self) -> None:
        """Send every pending write now."""
        pending, self._pending = self._pending, []
        for transport, data in pending:
            if not transport.is_closing():
                try:
                    transport.write(data)
                except RuntimeError:
                    # A transport that rejects writes must not stop the writes of other connections.
                    transport.abort()
