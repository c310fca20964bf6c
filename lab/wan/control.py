"""Control socket of the WAN: an HTTP API that lists links and sets faults at run time.

GET /links lists every link. PUT /faults takes {"select": {"link", "from", "to"}, "fault": {"mode", "extra_rtt_ms",
"jitter_ms"}}, replaces the fault of every matching link, and returns the names of the links.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus

import msgspec

from lab.engine.engine_http import HttpConnection
from lab.wan.network import Selector, Wan
from lab.wan.wan_config import Fault

MAX_BODY_BYTES = 65_536


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
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen and return the port; raises OSError if the port is in use."""
        loop = asyncio.get_running_loop()
        make = partial(HttpConnection, self, MAX_BODY_BYTES)
        self._server = await loop.create_server(make, self._host, self._wanted_port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; requests in progress still receive a response."""
        if self._server is not None:
            self._server.close()

    def connection_made(self, connection: HttpConnection) -> bool:
        """Accept every connection."""
        return True

    def head_arrived(self, connection: HttpConnection) -> None:
        """As `Handler.head_arrived`; the response needs the whole request."""

    def request_arrived(self, connection: HttpConnection) -> None:
        """Respond when the links have changed."""
        task = asyncio.get_running_loop().create_task(self._respond(connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def connection_lost(self, connection: HttpConnection) -> None:
        """As `Handler.connection_lost`; a change of links is not undone."""

    async def _respond(self, connection: HttpConnection) -> None:
        status, answer = await self._answer(connection.method, connection.path, connection.body)
        connection.respond(status, msgspec.json.encode(answer))

    async def _answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, object]:
        """Return the status of the response and the object to encode as its JSON body."""
        if (method, path) == ("GET", "/links"):
            return HTTPStatus.OK, self._wan.statuses()
        if (method, path) != ("PUT", "/faults"):
            return HTTPStatus.NOT_FOUND, Problem("there are GET /links and PUT /faults")
        try:
            order = msgspec.json.decode(body, type=FaultOrder)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, Problem(str(error))
        links = await self._wan.apply(order.select, order.fault)
        if not links:
            return HTTPStatus.NOT_FOUND, Problem("no link matches the selector; GET /links lists them")
        return HTTPStatus.OK, FaultAnswer(links)
