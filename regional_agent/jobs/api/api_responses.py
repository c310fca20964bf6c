"""Responses of the APIs of jobs: handlers that wait for the store, and error responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import KEEP_ALIVE_1_0, Request, response_head, with_common_lines
from regional_agent.proxy.error_formats import error_body

JSON: Final = b"content-type: application/json\r\n"

_EVENTS: Final = b"content-type: text/event-stream\r\ncache-control: no-store\r\n"

log = structlog.get_logger()


class Response(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    lines: tuple[bytes, ...] = ()
    """Further header lines."""


class Content(NamedTuple):
    """A response of a known size that is read part by part."""

    size_bytes: int
    parts: AsyncIterator[bytes]
    lines: tuple[bytes, ...] = (b"content-type: application/octet-stream\r\n",)
    """Header lines."""
    status: int = 200


class ContentDamaged(Exception):
    """The content of a response has another size than stated."""


class EventStream(NamedTuple):
    """A response with server-sent events, whose length is not known."""

    events: AsyncIterator[bytes]


class BadInput(Exception):
    """The request cannot be executed as it is.

    Args:
        status: status of the response.
        code: stable code for programs.
        param: the invalid field; None if there is no single one.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.parts: Final = (status, code, message, param)

    def response(self, error_format: ErrorFormat) -> Response:
        """Return the response."""
        status, code, message, param = self.parts
        return Response(status, error_body(error_format, status, code, message, param=param))


Answer = Response | Content | EventStream | Refusal
Refuse = Callable[[Refusal, Request], tuple[int, list[bytes], bytes]]
"""Counts a refusal, and returns status, header lines and body."""


def json_response(content: Any, status: int = 200) -> Response:
    """A response with a JSON object."""
    return Response(status, msgspec.json.encode(content))


def store_unavailable(error: StoreUnavailable) -> Refusal:
    """The refusal of a request that needs the store. The message of the store is logged, since it has its URL."""
    log.warning("the job store failed", error=str(error))
    detail = "the store of files and batches cannot be reached"
    return Refusal(Reason.STORE_UNAVAILABLE, detail, retry_after_s=MIN_RETRY_S)


class WaitingResponse:
    """The handler of a request whose response waits for the store."""

    def __init__(
        self,
        request: Request,
        connection: ClientConnection,
        refuse: Refuse,
        answer: Awaitable[Answer],
        error_format: ErrorFormat = ErrorFormat.OPENAI,
    ) -> None:
        """Start `answer`, and respond with its result."""
        self._error_format = error_format
        self._request = request
        self._connection = connection
        self._refuse = refuse
        self._writable = asyncio.Event()
        self._writable.set()
        self._begun = False
        self._task = asyncio.create_task(self._run(answer), name="job request")

    @property
    def is_active(self) -> bool:
        """Whether the response has not ended."""
        return not self._task.done()

    async def _run(self, awaitable: Awaitable[Answer]) -> None:
        try:
            await self._respond(await answer_of(awaitable, self._error_format))
        except Exception:
            log.exception("a request of the job APIs failed")
            self._connection.abort()

    async def _respond(self, answer: Answer) -> None:
        connection = self._connection
        if isinstance(answer, Refusal):
            connection.respond(*self._refuse(answer, self._request))
        elif isinstance(answer, Response):
            connection.respond(answer.status, [JSON, *answer.lines], answer.body)
        elif isinstance(answer, EventStream):
            await self._stream(answer)
        else:
            await self._send(answer)

    async def _stream(self, stream: EventStream) -> None:
        """Send events in chunks; to a client of HTTP/1.0 until the connection is closed."""
        request, connection = self._request, self._connection
        keep_alive = connection.may_keep_alive(request) and not request.http_1_0
        lines = [*with_common_lines([_EVENTS], request), b"connection: close\r\n" if not keep_alive else b""]
        if not request.http_1_0:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._begun = True
        connection.write(response_head(200, lines))
        async for event in stream.events:
            connection.write(event if request.http_1_0 else b"%x\r\n%b\r\n" % (len(event), event))
            await self._writable.wait()
        if not request.http_1_0:
            connection.write(b"0\r\n\r\n")
        connection.finished(keep_alive=keep_alive)

    async def _send(self, content: Content) -> None:
        request, connection = self._request, self._connection
        keep_alive = connection.may_keep_alive(request)
        lines = [
            *with_common_lines(list(content.lines), request),
            b"content-length: %d\r\n" % content.size_bytes,
        ]
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        elif request.http_1_0:
            lines.append(KEEP_ALIVE_1_0)
        self._begun = True
        connection.write(response_head(content.status, lines))
        if request.method != b"HEAD":
            left_bytes = content.size_bytes
            async for part in content.parts:
                left_bytes -= len(part)
                if left_bytes < 0:
                    break
                connection.write(part)
                await self._writable.wait()
            if left_bytes:
                # The store has other content than its record says: the client must not wait, nor misread what follows.
                raise ContentDamaged(f"the store has {-left_bytes} bytes more than recorded")
        connection.finished(keep_alive=keep_alive)

    def on_client_gone(self) -> None:
        """Stop to wait."""
        self._task.cancel()

    def on_client_writable(self, writable: bool) -> None:
        """Apply the client's back-pressure to the reads of the store."""
        self._writable.set() if writable else self._writable.clear()

    def on_request_body(self, chunk: bytes) -> None:
        """Not called: only complete requests wait."""

    def on_request_end(self) -> None:
        """Not called: only complete requests wait."""

    def on_request_refused(self, refusal: Refusal) -> None:
        """Refuse the request: another tenant needs the memory of its body."""
        self._task.cancel()
        if self._begun:
            self._connection.abort()
        else:
            self._connection.respond(*self._refuse(refusal, self._request))

    def drop_body(self) -> bool:
        """Return True: the body has been read when the handler starts."""
        return True


async def answer_of(answer: Awaitable[Answer], error_format: ErrorFormat = ErrorFormat.OPENAI) -> Answer:
    """Return an answer, or the response to what it raises."""
    try:
        return await answer
    except BadInput as error:
        return error.response(error_format)
    except StoreUnavailable as error:
        return store_unavailable(error)
