"""A connection that has become a tunnel (WebSocket): bytes both ways, each side as slow as the other, to the end."""

from __future__ import annotations

from collections.abc import Callable

from regional_agent.http.request_sequence import RequestSequence
from regional_agent.upstream.upstream_connection import UpstreamConnection


class Tunnel:
    """Receiver of the client's bytes and of the engine's."""

    __slots__ = (
        "_client",
        "_client_done",
        "_engine_done",
        "_moved",
        "_moved_at",
        "_on_end",
        "_upstream",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(
        self, client: RequestSequence, upstream: UpstreamConnection, now: float, on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called once both sides have said that they will send no more."""
        self._client = client
        self._upstream = upstream
        self._on_end = on_end
        self._client_done = self._engine_done = False
        self._moved, self._moved_at = True, now
        self.received_bytes = self.sent_bytes = 0
        """From the client, and to it."""

    def idle_s(self, now: float) -> float:
        """How long (s) nothing has moved; to be asked now and then."""
        if self._moved:
            self._moved, self._moved_at = False, now
        return now - self._moved_at

    # from the client

    def on_client_bytes(self, data: bytes) -> None:
        """Pass them on."""
        self._moved = True
        self.received_bytes += len(data)
        self._upstream.write_bytes(data)

    def on_client_eof(self) -> None:
        """The client will send no more; it may still read."""
        self._client_done = True
        self._upstream.write_eof()
        if self._engine_done:
            self._on_end()

    # from the engine

    def on_bytes(self, data: bytes) -> None:
        """Pass them on."""
        self._moved = True
        self.sent_bytes += len(data)
        self._client.write(data)

    def on_eof(self) -> None:
        """The engine will send no more; it may still read."""
        self._engine_done = True
        self._client.write_eof()
        if self._client_done:
            self._on_end()
