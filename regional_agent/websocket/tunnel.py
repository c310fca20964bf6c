"""The two directions of an upgraded connection (WebSocket), each with the back-pressure of its receiver."""

from __future__ import annotations

from collections.abc import Callable

from penstock.routing.reasons import Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.websocket.client_messages import MAX_FRAMES, ClientMessages, Violation
from regional_agent.websocket.websocket_frames import FollowedFrames, close_frame, text_frame

MAX_EVENTS = 64
"""Maximum number of events of the agent that wait for the end of a message of the engine."""


class Tunnel:
    """Receives the client's and the engine's bytes, and forwards them."""

    def __init__(
        self,
        client: ClientConnection,
        upstream: UpstreamConnection,
        now: float,
        on_end: Callable[[], None],
        on_engine_text: Callable[[bytes], None],
    ) -> None:
        """Connect both sides. `now` by the agent's clock (s).

        Args:
            on_end: called when both have half-closed, or when the engine's end `breaks_off`.
            on_engine_text: receives the engine's text messages (`FollowedFrames`).
        """
        self._client = client
        self._upstream = upstream
        self._on_end = on_end
        self._messages: ClientMessages | None = None
        self._frames, self._client_frames = FollowedFrames(on_engine_text), FollowedFrames()
        self._events: list[bytes] = []
        """Frames for the client that wait for the end of a message of the engine."""
        self._error_event: Callable[[Refusal], bytes] | None = None
        self._on_violation: Callable[[Violation], None] | None = None
        self._client_done = self._engine_done = self._closed = False
        self._has_news, self._last_data_at = True, now
        self.received_bytes = self.sent_bytes = 0
        """Bytes from the client, and bytes to the client."""

    def read_messages(
        self,
        messages: ClientMessages,
        error_event: Callable[[Refusal], bytes],
        on_violation: Callable[[Violation], None],
    ) -> None:
        """Read the client's messages before they are forwarded.

        Args:
            messages: the reader.
            error_event: returns the message that reports a refused message to the client.
            on_violation: called if data of the client must not reach the engine; it ends the connection.
        """
        self._messages, self._error_event, self._on_violation = messages, error_event, on_violation

    def idle_s(self, now: float) -> float:
        """Time (s) without data in either direction, with the interval between calls as its resolution."""
        if self._has_news:
            self._has_news, self._last_data_at = False, now
        return now - self._last_data_at

    @property
    def breaks_off(self) -> bool:
        """Whether neither side has said that the connection ends: an end of the engine's data is then a failure."""
        return not (self._frames.closed or self._client_frames.closed or self._client_done or self._closed)

    @property
    def engine_closed(self) -> bool:
        """Whether the engine has sent a Close frame."""
        return self._frames.closed

    @property
    def close_code(self) -> int:
        """The status code of the engine's Close frame; 0 without one."""
        return self._frames.close_code

    def close(self, code: int, reason: str) -> bool:
        """Send a Close frame to the client; returns whether it could be sent. The caller ends the connection.

        Args:
            code: status code (RFC 6455, section 7.4).
            reason: text for people.
        """
        self._closed = True
        if self._engine_done or not self._frames.between_frames:
            return False
        self._write(close_frame(code, reason))
        return True

    # TunnelReceiver: from the client

    def on_client_bytes(self, data: bytes) -> None:
        """Forward the client's data."""
        if self._closed:
            return
        self._has_news = True
        self.received_bytes += len(data)
        if self._messages is None:
            self._forward(data)
            return
        try:
            data, refusals = self._messages.feed(data)
        except Violation as violation:
            if self._on_violation is not None:
                self._on_violation(violation)
            return
        if data:
            self._forward(data)
        for refusal in refusals:
            if self._error_event is not None:
                self._add_event(text_frame(self._error_event(refusal)))

    def _forward(self, data: bytes) -> None:
        self._client_frames.feed(data, MAX_FRAMES)
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
        if self._closed:
            return
        self._has_news = True
        at = self._frames.feed(data)
        if self._events and at >= 0:
            data = b"".join([data[:at], *self._events, data[at:]])
            self._events.clear()
        self._write(data)

    def on_eof(self) -> None:
        """Forward the half-close of the engine, which may still read; report the end of an engine that failed."""
        if self.breaks_off:
            self._on_end()
            return
        self._engine_done = True
        self._client.transport.write_eof()
        if self._client_done:
            self._on_end()

    def _add_event(self, frame: bytes) -> None:
        if self._frames.between_messages:
            self._write(frame)
        elif not self._frames.closed and len(self._events) < MAX_EVENTS:
            self._events.append(frame)

    def _write(self, data: bytes) -> None:
        self.sent_bytes += len(data)
        self._client.write(data)
