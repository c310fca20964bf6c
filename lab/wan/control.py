"""Control socket of the WAN: an HTTP API that lists links and sets faults at run time.

GET /links lists every link. PUT /faults takes {"select": {"link", "from", "to"}, "fault": {"mode", "extra_rtt_ms",
"jitter_ms"}}, replaces the fault of every matching link, and returns the names of the links.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

import httptools
import msgspec

from lab.wan.network import Selector, Wan
from lab.wan.wan_config import Fault

MAX_BODY_BYTES = 65_536
REQUEST_TIMEOUT_S = 10.0
"""Time limit (s) for the arrival of a request."""


class FaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PUT /faults."""

    fault: Fault
    select: Selector = Selector()
    """Selects the links; an empty selector selects all links."""


class FaultAnswer(msgspec.Struct, frozen=True):
    """Response to PUT /faults."""

    links: list[str]
    """Names of the links whose fault was replaced."""


class Problem(msgspec.Struct, frozen=True):
    """Response to a rejected request."""

    error: str


class WanControl:
    """Serves one WAN's control socket."""

    def __init__(self, wan: Wan, host: str, port: int) -> None:
        """Args: with `port` 0 the system selects a port."""
        self._wan = wan
        self._host = host
        self._wanted_port = port
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen and return the port; raises OSError if the port is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ControlConnection(self), self._host, self._wanted_port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; requests in progress still receive a response."""
        if self._server is not None:
            self._server.close()

    async def answer(self, method: bytes, path: bytes, body: bytes) -> tuple[HTTPStatus, object]:
        """Return the status of the response and the object to encode as its JSON body."""
        if (method, path) == (b"GET", b"/links"):
            return HTTPStatus.OK, self._wan.statuses()
        if (method, path) != (b"PUT", b"/faults"):
            return HTTPStatus.NOT_FOUND, Problem("there are GET /links and PUT /faults")
        try:
            order = msgspec.json.decode(body, type=FaultOrder)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, Problem(str(error))
        links = await self._wan.apply(order.select, order.fault)
        if not links:
            return HTTPStatus.NOT_FOUND, Problem("no link matches the selector; GET /links lists them")
        return HTTPStatus.OK, FaultAnswer(links)


class _ControlConnection(asyncio.Protocol):
    """Serves one request, then closes the connection."""

    def __init__(self, control: WanControl) -> None:
        self._control = control
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timeout = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._timeout.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._send(HTTPStatus.BAD_REQUEST, Problem("not an HTTP request"))

    def on_url(self, part: bytes) -> None:
        self._url += part
        if len(self._url) > MAX_BODY_BYTES:
            self._transport.abort()

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > MAX_BODY_BYTES:
            self._transport.abort()

    def on_message_complete(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        method = self._parser.get_method()
        self._send(*await self._control.answer(method, self._url, bytes(self._body)))

    def _send(self, status: HTTPStatus, answer: object) -> None:
        body = msgspec.json.encode(answer)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.close()
