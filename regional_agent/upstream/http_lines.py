"""Reads the lines of a response without an end, such as a watch of the Kubernetes API."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from penstock.http.response_head import ResponseHead
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TimedOut, TooLarge, UpstreamError

MAX_WAITING_LINES: Final = 256
"""Number of queued lines above which the connection is not read."""

MAX_ERROR_BYTES: Final = 16 * 1024
"""Maximum size (bytes) of the stored beginning of the body, for a status other than 200."""


class RefusedStream(UpstreamError):
    """The server responded with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        """Keep the status and the beginning of the body."""
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


async def stream_lines(
    pool: UpstreamPool,
    address: Address,
    target: str,
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    silence_s: float,
    max_line_bytes: int,
) -> AsyncGenerator[bytes, None]:
    """Send a GET request; yields an empty line when the head of the response arrives, then each line that is not empty.

    Args:
        silence_s: time (s) without a line after which the stream fails.
        max_line_bytes: maximum length (bytes) of a line.

    Raises:
        UpstreamError: the subclass indicates the kind of failure; RefusedStream for a status other than 200.
    """
    lines = [f"GET {target} HTTP/1.1\r\n".encode(), pool.host_line(address)]
    lines += [name + b": " + value + b"\r\n" for name, value in headers]
    connection = await pool.connect(address)
    sink = _LineSink(connection, max_line_bytes)
    try:
        connection.send(sink, b"".join([*lines, b"\r\n"]))
        while True:
            while sink.lines:
                yield sink.next_line()
            if sink.ended:
                break
            try:
                async with asyncio.timeout(silence_s):
                    await sink.arrived.wait()
            except TimeoutError:
                raise TimedOut(f"{address} was silent for {silence_s:g} s") from None
        sink.raise_failure()
    finally:
        if not sink.ended:
            connection.abort()


class _LineSink:
    """Splits a body into lines; pauses reading while too many lines are queued."""

    def __init__(self, connection: UpstreamConnection, max_line_bytes: int) -> None:
        self.lines: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self.ended = False
        self._connection = connection
        self._max_line_bytes = max_line_bytes
        self._status = 0
        self._rest = bytearray()
        self._failure: UpstreamError | None = None
        self._paused = False

    def next_line(self) -> bytes:
        line = self.lines.popleft()
        if not self.lines:
            if not self.ended:
                self.arrived.clear()
            if self._paused:
                self._paused = False
                self._connection.resume_reading()
        return line

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._status != 200:
            raise RefusedStream(self._status, bytes(self._rest))

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        if head is not None:
            self._status = head.status
            if head.status == 200:
                self.lines.append(b"")
                self.arrived.set()
        if parts:
            self._add(b"".join(parts))
        if ended:
            self._end()

    def _add(self, data: bytes) -> None:
        if self._status != 200:
            self._rest += data[: MAX_ERROR_BYTES - len(self._rest)]
            return
        self._rest += data
        if b"\n" in data:
            *whole, rest = self._rest.split(b"\n")
            self.lines += [bytes(line) for line in whole if line]
            self._rest = rest
        if len(self._rest) > self._max_line_bytes:
            self._connection.abort()
            self.on_broken(TooLarge(f"a line of more than {self._max_line_bytes} bytes"))
        if self.lines:
            self.arrived.set()
        if len(self.lines) > MAX_WAITING_LINES and not self._paused:
            self._paused = True
            self._connection.pause_reading()

    def on_broken(self, error: UpstreamError) -> None:
        self._failure = error
        self._end()

    def on_writable(self, writable: bool) -> None:
        """Do nothing: the request fits into the socket's buffer."""

    def _end(self) -> None:
        if self._paused:  # Reading continues, since the connection may be reused.
            self._paused = False
            self._connection.resume_reading()
        self.ended = True
        self.arrived.set()
