"""One ComfyUI: its requests, and the WebSocket of one of its clients."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from typing import Final, NamedTuple

from penstock.http.header_rules import Header
from penstock.http.response_head import ResponseHead
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import Fetched, FetchRequest, fetch
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError
from regional_agent.websocket.websocket_frames import FollowedFrames, pong_frame

REQUEST_TIMEOUT_S: Final = 10.0
"""Timeout (s) of a request, unless another one is given."""

OPEN_TIMEOUT_S: Final = 1.0
"""Maximum time (s) for which a prompt waits for the WebSocket."""

MAX_RESULT_BYTES: Final = 64 * 1024 * 1024
"""Maximum size (bytes) of all images in one response."""

MAX_FRAMES: Final = 2048
"""Number of frames in one read of the event loop from which on the WebSocket is closed."""

_JSON: Final = b"application/json"
_ACCEPT_OF: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""What a server adds to the key of a handshake (RFC 6455, section 1.3)."""


class Engine(NamedTuple):
    """The ComfyUI that runs the workflow."""

    pool: UpstreamPool
    address: Address
    base_path: str
    headers: tuple[tuple[bytes, bytes], ...]
    """Header fields of each request, such as the endpoint's credential."""

    async def get(self, target: str, limit_bytes: int = MAX_RESULT_BYTES) -> Fetched:
        """Send a GET; raises UpstreamError."""
        request = FetchRequest(self.base_path + target, self.headers)
        return await fetch(self.pool, self.address, request, timeout_s=REQUEST_TIMEOUT_S, limit_bytes=limit_bytes)

    async def post(
        self, target: str, body: bytes, timeout_s: float = REQUEST_TIMEOUT_S, content_type: bytes = _JSON
    ) -> Fetched:
        """Send a POST; raises UpstreamError."""
        headers = (*self.headers, (b"content-type", content_type))
        request = FetchRequest(self.base_path + target, headers, body)
        return await fetch(self.pool, self.address, request, timeout_s=timeout_s)


class EngineSocket:
    """The WebSocket of one client: its text messages, up to MAX_TEXT_BYTES. All others, as previews, are skipped."""

    def __init__(self, engine: Engine, on_text: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        """Prepare; `open` connects.

        Args:
            on_text: receives each text message.
            on_lost: called when a socket that was open has closed, unless by `close`.
        """
        self._engine = engine
        self._on_lost = on_lost
        self._frames = FollowedFrames(on_text, self._on_ping)
        self._key = b64encode(os.urandom(16))
        self._connection: UpstreamConnection | None = None
        self._answered = asyncio.Event()
        self.is_open = False

    async def open(self, client_id: str) -> None:
        """Ask for the messages of a client. The ComfyUI, or a proxy before it, may refuse: then none follows."""
        pool, address = self._engine.pool, self._engine.address
        if address in pool.serial:
            # It would be the only connection.
            return
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                connection = self._connection = await pool.connect(address)
                lines = [
                    f"GET {self._engine.base_path}/ws?clientId={client_id} HTTP/1.1\r\n".encode(),
                    connection.host_line,
                    *(name + b": " + value + b"\r\n" for name, value in self._engine.headers),
                    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
                    b"sec-websocket-key: %b\r\n\r\n" % self._key,
                ]
                connection.send_upgrade(self, b"".join(lines))
                await self._answered.wait()
        if not self.is_open:
            self.close()

    def close(self) -> None:
        """Close the connection; no call follows."""
        self.is_open = False
        if self._connection is not None:
            self._connection.abort()

    def _lose(self) -> None:
        was_open = self.is_open
        self._answered.set()
        self.close()
        if was_open:
            self._on_lost()

    def _on_ping(self, payload: bytes) -> None:
        if self._connection is not None and self._connection.writable:
            self._connection.write_bytes(pong_frame(payload, os.urandom(4)))

    # TunnelSink

    def on_upgraded(self, headers: list[Header]) -> EngineSocket:
        """Begin to read messages."""
        accept = b64encode(sha1(self._key + _ACCEPT_OF, usedforsecurity=False).digest())
        self.is_open = dict(headers).get(b"sec-websocket-accept") == accept
        self._answered.set()
        return self

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        """Do without the socket: the handshake was refused."""
        self._answered.set()
        if ended:
            self._lose()

    def on_broken(self, error: UpstreamError) -> None:
        self._lose()

    def on_writable(self, writable: bool) -> None:
        """Do nothing: only small frames are written."""

    # BytesSink

    def on_bytes(self, data: bytes) -> None:
        """Read frames."""
        if self.is_open:
            self._frames.feed(data, MAX_FRAMES)
            if self._frames.closed:
                self._lose()

    def on_eof(self) -> None:
        self._lose()
