"""Sends one request and returns the whole response; for probes, reports and metrics scraping, on pooled connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.http.response_head import ResponseHead
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import Stale, TimedOut, TooLarge, UpstreamError


class FetchRequest(NamedTuple):
    """A request whose whole response is awaited."""

    target: str
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes | None = None
    """The request is a POST with this body; None for a GET."""


class Fetched(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: dict[str, str]
    """Names in lower case; the last value of a repeated header."""
    body: bytes


async def fetch(
    pool: UpstreamPool,
    address: Address,
    request: FetchRequest,
    *,
    timeout_s: float,
    limit_bytes: int = 1 << 20,
) -> Fetched:
    """Send one request and wait for the complete response.

    If a pooled connection closes before any byte of the response, the request is sent again once on a new connection.

    Args:
        timeout_s: time limit (s) for the response, connecting included.
        limit_bytes: maximum size (bytes) of the response body.

    Raises:
        UpstreamError: the subclass indicates the kind of failure.
    """
    head = f"{'GET' if request.body is None else 'POST'} {request.target} HTTP/1.1\r\n".encode()
    body = request.body or b""
    lines = [head, pool.host_line(address), b"content-length: %d\r\n" % len(body)]
    lines += [name + b": " + value + b"\r\n" for name, value in request.headers]
    if address in pool.serial:
        lines.append(b"connection: close\r\n")
    content = b"".join([*lines, b"\r\n", body])
    try:
        async with asyncio.timeout(timeout_s):
            idle = pool.take(address)
            if idle is not None:
                try:
                    return await _exchange(idle, content, limit_bytes)
                except Stale:
                    pass
            return await _exchange(await pool.connect(address, timeout_s), content, limit_bytes)
    except TimeoutError:
        raise TimedOut(f"{address} did not respond within {timeout_s} s") from None


async def _exchange(connection: UpstreamConnection, request: bytes, limit_bytes: int) -> Fetched:
    collector = _Collector(connection, limit_bytes)
    connection.send(collector, request)
    try:
        return await collector.done
    except asyncio.CancelledError:
        connection.abort()
        raise


class _Collector:
    """A sink that collects a whole response."""

    def __init__(self, connection: UpstreamConnection, limit_bytes: int) -> None:
        self.done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        if head is not None:
            self._status = head.status
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        for part in parts:
            self._body += part
        if len(self._body) > self._limit_bytes:
            self._connection.abort()
            self.on_broken(TooLarge(f"a response of more than {self._limit_bytes} bytes"))
        elif ended and not self.done.done():
            self.done.set_result(Fetched(self._status, self._headers, bytes(self._body)))

    def on_broken(self, error: UpstreamError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def on_writable(self, writable: bool) -> None:
        """Do nothing: the request fits into the socket's buffer."""
