"""Requests of the agent to its own services, without a socket.

They are read by the same parser, and run by the same state machine, as the requests of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import httptools

from penstock.jobs.response_memory import FREE_BYTES, ResponseMemory
from penstock.result_cache.cache_control import CACHE_CONTROL
from regional_agent.http.client_connection import Application, ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.listener import trusts_none
from regional_agent.http.listener_state import ListenerState

MAX_IDLE: Final = 256
"""Idle connections that are kept."""


class InternalResponse(NamedTuple):
    """The response to an internal request."""

    status: int
    headers: dict[bytes, bytes]
    """The last value of each header, names in lower case; of Cache-Control, all values."""
    body: bytes

    def header(self, name: bytes) -> str:
        """Return a header's value; empty if it is absent."""
        return self.headers.get(name, b"").decode("latin-1")


class ResponsePart(NamedTuple):
    """A part of the body of a response that has not ended, or an interim response before it, which has no body."""

    status: int
    headers: dict[bytes, bytes]
    """As of `InternalResponse`."""
    content: bytes
    set_reading: Callable[[bool], None]
    """Pauses and resumes the response."""
    fail: Callable[[ConnectionLost], None]
    """Ends the response early."""


OnPart = Callable[[ResponsePart], bool]
"""Receives each part of a body, and each interim response; returns whether a part needs no place in the whole body."""


class ConnectionLost(Exception):
    """The response is incomplete, or larger than the limit."""


class ResponseTooLarge(ConnectionLost):
    """The response is larger than the limit."""


class ResponseCut(ConnectionLost):
    """The response is a stream that failed: its last event is the error, as a client would receive it."""


class InternalRequests:
    """Sends requests to one application in this process."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        location_header: bytes,
        max_response_bytes: int,
        memory: ResponseMemory | None = None,
    ) -> None:
        """Create a sender of requests.

        Args:
            limits: of requests, as of the listener for clients.
            location_header: see `ListenerState`.
            max_response_bytes: a larger response ends the connection.
            memory: gives permits to large responses; None for responses that are all small.
        """
        self._memory = memory
        self._application = application
        self._state = ListenerState(limits, trusts_none, location_header, secure=False)
        self._max_response_bytes = max_response_bytes
        self._idle: list[_Connection] = []

    async def send(self, head: bytes, body: bytes, on_part: OnPart | None = None) -> InternalResponse:
        """Send a request, and return its response. A cancelled call ends the request as a disconnect does.

        Args:
            head: request line and header lines, without Content-Length and the empty line.
            on_part: receives each part of the body of the response.

        Raises:
            ConnectionLost: the response ended early.
            ResponseCut: so did a stream, whose last part is the error.
            ResponseTooLarge: the response exceeds the limit.
        """
        connection = self._idle.pop() if self._idle else _Connection(self._state, self._application, self._memory)
        try:
            response = await connection.send(
                b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body), self._max_response_bytes, on_part
            )
        except BaseException:
            connection.abort()
            raise
        if connection.is_open and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        return response


class _NoRegistry:
    """A registry that counts nothing: the caller limits the number of requests."""

    def on_connected(self, connection: ClientConnection) -> None: ...

    def on_closed(self, connection: ClientConnection) -> None: ...


class _Connection(asyncio.Transport):
    """The transport of a client connection whose client is this object. One request at a time."""

    def __init__(self, state: ListenerState, application: Application, memory: ResponseMemory | None) -> None:
        super().__init__()
        self._memory = memory
        self._on_part: OnPart | None = None
        self._asked = False
        """Whether the response has a permit, or waits for one."""
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._connection = ClientConnection(state, application, _NoRegistry())
        self._response: asyncio.Future[InternalResponse] | None = None
        self._parser: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = self._max_bytes = 0
        self._request = b""
        self.is_open = True
        self._is_lost = False
        self._connection.connection_made(self)

    async def send(self, request: bytes, max_bytes: int, on_part: OnPart | None) -> InternalResponse:
        self._on_part = on_part
        response = self._response = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body, self._body_bytes, self._max_bytes = {}, [], 0, max_bytes
        self._connection.transport.is_cut = False
        self._connection.data_received(request)
        try:
            found = cast(InternalResponse, await response)
            if self._connection.transport.is_cut:
                raise ResponseCut("the stream ended with an error")
            return found
        finally:
            self._response = None
            self._body = []
            if self._paused:
                self._granted()
            if self._asked:
                assert self._memory is not None
                self._asked = False
                # Later: the caller first counts the response as held.
                self._loop.call_soon(self._memory.withdraw, self._granted)

    # callbacks of httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == CACHE_CONTROL and name in self._headers:
            value = b"%b, %b" % (self._headers[name], value)
        self._headers[name] = value

    def on_body(self, part: bytes) -> None:
        if self._on_part is not None and self._on_part(
            ResponsePart(self._parser.get_status_code(), self._headers, part, self._set_reading, self._fail)
        ):
            return
        self._body.append(part)
        self._body_bytes += len(part)
        if self._body_bytes > self._max_bytes:
            self._fail(ResponseTooLarge(f"the response is larger than {self._max_bytes} bytes"))
        elif self._body_bytes > FREE_BYTES and self._memory is not None and not self._asked:
            self._asked = self._paused = True
            self._memory.acquire(self._granted)
            if self._paused:
                self._connection.pause_writing()

    def _set_reading(self, reading: bool) -> None:
        if reading:
            self._granted()
        elif not self._paused and self.is_open:
            self._paused = True
            self._connection.pause_writing()

    def _granted(self) -> None:
        """Continue to read the response."""
        was_paused, self._paused = self._paused, False
        if was_paused:
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self.is_open and not self._paused:
            self._connection.resume_writing()

    def on_message_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status < 200:
            headers, self._headers = self._headers, {}
            if self._on_part is not None:
                self._on_part(ResponsePart(status, headers, b"", self._set_reading, self._fail))
            return
        self.is_open &= self._parser.should_keep_alive()
        if self._response is not None and not self._response.done():
            self._response.set_result(InternalResponse(status, self._headers, b"".join(self._body)))

    # asyncio.Transport

    def write(self, data: Any) -> None:
        if self._response is None or self._response.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionLost(str(error)))

    def pause_reading(self) -> None:
        """Do nothing: the whole request has been given to the connection."""

    def resume_reading(self) -> None:
        """Do nothing: the whole request has been given to the connection."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._fail(ConnectionLost("the connection was closed before the end of the response"))

    def _fail(self, error: ConnectionLost) -> None:
        self.is_open = False
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._connection.connection_lost, None)
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
