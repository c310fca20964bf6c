"""The two directions of an upgraded connection (WebSocket), each with the back-pressure of its receiver."""

from __future__ import annotations

from collections.abc import Callable

from regional_agent.http.request_sequence import RequestSequence
from regional_agent.upstream.upstream_connection import UpstreamConnection


class Tunnel:
    """Receives the client's and the engine's bytes, and forwards them."""

    __slots__ = (
        "_client",
        "_client_done",
        "_engine_done",
        "_has_news",
        "_last_data_at",
        "_on_end",
        "_upstream",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(
        self, client: RequestSequence, upstream: UpstreamConnection, now: float, on_end: Callable[[], None]
    ) -> None:
        """Connect both sides; `on_end` is called when both have half-closed."""
        self._client = client
        self._upstream = upstream
        self._on_end = on_end
        self._client_done = self._engine_done = False
        self._has_news, self._last_data_at = True, now
        self.received_bytes = self.sent_bytes = 0
        """Bytes from the client, and bytes to the client."""

    def idle_s(self, now: float) -> float:
        """Time (s) without data in either direction, with the interval between calls as its resolution."""
        if self._has_news:
            self._has_news, self._last_data_at = False, now
        return now - self._last_data_at

    # TunnelReceiver: from the client

    def on_client_bytes(self, data: bytes) -> None:
        """Forward the client's data."""
        self._has_news = True
        self.received_bytes += len(data)
        self._upstream.write_bytes(data)

    def on_client_eof(self) -> None:
        """Forward the half-close of the client, which may still read."""
        self._client_done = True
        self._upstream.write_eof()
        if self._engine_done:
            self._on_end()

    # BytesSink: from the engine

    def on_bytes(self, data: bytes) -> None:
        """Forward the engine's data."""
        self._has_news = True
        self.sent_bytes += len(data)
        self._client.write(data)

    def on_eof(self) -> None:
        """Forward the half-close of the engine, which may still read."""
        self._engine_done = True
        self._client.write_eof()
        if self._client_done:
            self._on_end()
