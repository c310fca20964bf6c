"""Responses of the APIs of jobs: handlers that wait for the store, and error responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.http.response_head import ResponseHead
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request, with_common_lines
from regional_agent.http.waiting_request import CompleteRequest
from regional_agent.jobs.storage.job_storage import StoreSilent
from regional_agent.proxy.error_formats import error_body
from regional_agent.proxy.responses.client_response import ClientResponse

JSON: Final = b"content-type: application/json\r\n"

_TEMPORARY: Final = frozenset({"completion_in_progress", "no_result"})
"""Codes of errors after which the same request can succeed."""

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
        """Return the response. SDKs would repeat a request after 409 and 501, too."""
        status, code, message, param = self.parts
        lines = () if status == 429 or code in _TEMPORARY else (b"x-should-retry: false\r\n",)
        return Response(status, error_body(error_format, status, code, message, param=param), lines)


Answer = Response | Content | EventStream | Refusal
Refuse = Callable[[Refusal, Request], tuple[int, list[bytes], bytes]]
"""Counts a refusal, and returns status, header lines and body."""


def json_response(content: Any, status: int = 200) -> Response:
    """A response with a JSON object."""
    return Response(status, msgspec.json.encode(content))


def store_unavailable(error: StoreUnavailable) -> Refusal:
    """The refusal of a request that needs the store. The message of the store is logged, since it has its URL."""
    if not isinstance(error, StoreSilent):
        log.warning("the job store failed", error=str(error))
    detail = "the store of files and batches cannot be reached"
    return Refusal(Reason.STORE_UNAVAILABLE, detail, retry_after_s=MIN_RETRY_S)


class WaitingResponse(CompleteRequest):
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

    def on_end(self, call: Callable[[], object]) -> None:
        """Call `call` when the response has ended, or its client has left."""
        self._task.add_done_callback(lambda _: call())

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

    def _begin(self, status: int, lines: Iterable[bytes], by_name: dict[bytes, bytes]) -> ClientResponse:
        """Send the head of a response whose length is in `by_name`, or unknown."""
        response = ClientResponse(self._connection, self._request)
        own_lines = b"".join(with_common_lines([*lines], self._request))
        self._begun = True
        response.start(ResponseHead(status, [], by_name), own_lines)
        response.flush()
        return response

    async def _stream(self, stream: EventStream) -> None:
        response = self._begin(200, [_EVENTS], {})
        async for event in stream.events:
            response.add(event)
            response.flush()
            await self._writable.wait()
        response.end()
        self._connection.finished(keep_alive=response.keep_alive)

    async def _send(self, content: Content) -> None:
        left_bytes = content.size_bytes
        response = self._begin(content.status, content.lines, {b"content-length": b"%d" % left_bytes})
        if self._request.method != b"HEAD":
            async for part in content.parts:
                left_bytes -= len(part)
                if left_bytes < 0:
                    break
                response.add(part)
                response.flush()
                await self._writable.wait()
            if left_bytes:
                # The store has other content than its record says: the client must not wait, nor misread what follows.
                raise ContentDamaged(f"the store has {-left_bytes} bytes more than recorded")
        self._connection.finished(keep_alive=response.keep_alive)

    def on_client_gone(self) -> None:
        """Stop to wait."""
        self._task.cancel()

    def on_client_writable(self, writable: bool) -> None:
        """Apply the client's back-pressure to the reads of the store."""
        self._writable.set() if writable else self._writable.clear()

    def on_request_refused(self, refusal: Refusal) -> None:
        """Refuse the request: another tenant needs the memory of its body."""
        self._task.cancel()
        if self._begun:
            self._connection.abort()
        else:
            self._connection.respond(*self._refuse(refusal, self._request))

    def drop_body(self) -> bool:
        """Return whether the response has begun. Until then, the body may have yet to be stored."""
        return self._begun


async def answer_of(answer: Awaitable[Answer], error_format: ErrorFormat = ErrorFormat.OPENAI) -> Answer:
    """Return an answer, or the response to what it raises."""
    try:
        return await answer
    except BadInput as error:
        return error.response(error_format)
    except StoreUnavailable as error:
        return store_unavailable(error)
