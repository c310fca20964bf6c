"""One engine run, and the clients that share its response.

A response that is a stream is sent to all clients as it arrives; a client that joins late receives the beginning first.
The engine is read while one of the clients can receive: one that is slower than others falls behind, and its stream
ends with an error when it is too far behind. Any other response is sent when it is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from penstock.http.header_rules import HOP_BY_HOP, LIMIT_PREFIXES, REFUSAL_HEADER, Header
from penstock.http.response_head import EVENT_STREAM_TYPE, NDJSON_TYPES, ResponseHead
from penstock.routing.reasons import Reason, Refusal
from regional_agent.coalescing.coalescing_metrics import CoalescingMetrics
from regional_agent.coalescing.run_memory import RunHold, in_pieces
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request, with_common_lines
from regional_agent.http.request_handler import Handler
from regional_agent.http.waiting_request import CompleteRequest
from regional_agent.jobs.internal_connection import (
    ConnectionLost,
    InternalRequests,
    InternalResponse,
    ResponseCut,
    ResponsePart,
    ResponseTooLarge,
)
from regional_agent.proxy.error_responses import error_format_of
from regional_agent.proxy.responses.client_response import ClientResponse
from regional_agent.requests.request_context import RequestContext
from regional_agent.result_cache.result_cache import CacheUse

MAX_TRIES: Final = 2
"""Runs of a shared request: a failure of the first does not fail all clients."""

MAX_COPIED_BYTES: Final = 256 * 1024 * 1024
"""Maximum size (bytes) of the copies of one shared response, which are in memory until slow clients have received
them. The requests of further clients run by themselves, or share another run. Of a stream, it limits what is kept for
all clients that join, and what is kept for all that are behind."""

MAX_REPLAYED_BYTES: Final = 256 * 1024
"""Size (bytes) of the beginning of a stream that is kept for clients that join. From then on, none joins."""

MAX_BEHIND_BYTES: Final = 256 * 1024
"""Bytes by which a client may be behind the others of a stream, besides its socket's buffers."""

_OWN_FRAMING: Final = HOP_BY_HOP | {b"content-length"}

_OF_SENDER: Final = (*LIMIT_PREFIXES, b"set-cookie")

_LOST: Final = Refusal(Reason.ENGINE_FAILED, "the shared response was incomplete")
_TOO_SLOW: Final = Refusal(Reason.REQUEST_TIMEOUT, "the client reads the stream slower than others that share it")

log = structlog.get_logger()

Refuse = Callable[[Refusal, Request], tuple[int, list[bytes], bytes]]
Serve = Callable[[Request, ClientConnection], Handler | None]
"""Runs a request by itself."""
Reauthorize = Callable[[RequestContext, str], Refusal | None]
"""Returns why a client may not receive more of a response of a region, after a change of policy or of its tenant."""


class RunRequests(NamedTuple):
    """What sends the requests of one run."""

    requests: InternalRequests
    gpu_s: Callable[[], float]
    """Estimated GPU seconds of the request that was sent."""


class RunHeaders(NamedTuple):
    """The header fields of a client's request that its run has."""

    to_engine: tuple[Header, ...]
    choosing: tuple[Header, ...]
    """Those by which the agent chooses the model or its version."""


class Client(NamedTuple):
    """One client's request that shares a run or a response."""

    request: Request
    connection: ClientConnection
    refuse: Refuse
    use: CacheUse | None
    """How the request uses the result cache; None if it does not."""
    headers: RunHeaders
    identity: tuple[str, str | None]
    """Tenant and API key."""
    context: RequestContext | None
    """What the client may receive, if others of its run may be of other keys or tenants."""

    def respond(self, found: InternalResponse, hold: RunHold, *, is_own: bool) -> None:
        """Send the whole response of the run.

        Args:
            hold: of the run, while the response is sent.
            is_own: whether the run is that of this client's tenant and key.
        """
        lines = _lines(found.headers, is_own=is_own)
        answer = (found.status, lines, found.body) if self.use is None else self.use.answer(found, lines)
        handler = in_pieces(self.request, self.connection, self.refuse, *answer)
        if handler is not None:
            hold.use()
            handler.on_end(hold.release)
            self.connection.hand_over(self.request, handler)


class SharedRun:
    """One run, and the clients that wait for it."""

    def __init__(
        self,
        requests: RunRequests,
        serve: Serve,
        reauthorize: Reauthorize,
        metrics: CoalescingMetrics,
        hold: RunHold,
    ) -> None:
        self._hold = hold
        self._requests = requests
        self._serve = serve
        self._reauthorize = reauthorize
        self._metrics = metrics
        self._clients: list[RunClient] = []
        self._task: asyncio.Task[None] | None = None
        self._identity: tuple[str, str | None] | None = None
        """That of the first client, which is the sender of the run."""
        self._stream: ResponsePart | None = None
        """The first part of the response if it is a stream."""
        self._beginning: list[bytes] = []
        self._beginning_bytes = 0
        self._parts: list[bytes] = []
        """What has arrived of a response that is no stream."""
        self._is_read = True
        self._is_cut = False
        """Whether the stream has failed, and its last part is the error."""

    def start(self, head: bytes, body: bytes, on_full: Callable[[], object]) -> None:
        """Start to run the request with `head` and `body`; `on_full` is called when no further client may join."""
        self._on_full = on_full
        self._task = asyncio.create_task(self._run(head, body), name="shared request")
        self._task.add_done_callback(lambda _: self._hold.release())

    def join(self, client: Client) -> Handler:
        """Add a client."""
        self._identity = self._identity or client.identity
        handler = RunClient(self, client, is_own=client.identity == self._identity)
        self._clients.append(handler)
        if self._beginning_bytes * len(self._clients) > MAX_COPIED_BYTES:
            self._on_full()
        if self._stream is not None:
            # The connection does not have the handler yet, which must hear of a full write buffer.
            asyncio.get_running_loop().call_soon(self._begin, handler)
        return handler

    def leave(self, client: RunClient) -> None:
        """Remove a client that has disconnected; the last one ends the run."""
        if client not in self._clients:
            return
        self._clients.remove(client)
        if self._clients:
            self.clients_changed()
        elif self._task is not None:
            self._on_full()
            self._task.cancel()

    def clients_changed(self) -> None:
        """Read the stream if a client can receive it."""
        reads = any(client.is_writable for client in self._clients)
        if self._stream is not None and reads is not self._is_read:
            self._is_read = reads
            self._stream.set_reading(reads)

    async def _run(self, head: bytes, body: bytes) -> None:
        found: InternalResponse | None = None
        is_too_large = False
        try:
            found = await self._response(head, body)
        except ResponseTooLarge:
            is_too_large = True
        except Exception:
            log.exception("a shared request failed")
        self._on_full()
        for client in self._clients:
            self._begin(client)
        clients, self._clients = self._clients, []
        if self._stream is not None:
            served = self._end_streams(clients, complete=found is not None)
        else:
            served = self._send(clients, found, is_too_large=is_too_large)
        self._metrics.saved_gpu_s.inc(max(0, served - 1) * self._requests.gpu_s())
        use = next((each.client.use for each in clients), None)
        if found is not None and use is not None and self._stream is None:
            use.keep(found)

    def _send(self, clients: list[RunClient], found: InternalResponse | None, *, is_too_large: bool) -> int:
        """End the requests of clients whose response is not streamed; returns how many receive that of the run."""
        left_bytes, served = MAX_COPIED_BYTES, 0
        is_refused = found is not None and REFUSAL_HEADER in found.headers
        for each in clients:
            left_bytes -= 0 if found is None else len(found.body)
            client = each.client
            request, connection = client.request, client.connection
            refusal = _LOST if found is None else self._refusal(client, found.headers)
            # What the agent refuses one key, another one may receive.
            if is_too_large or left_bytes < 0 or (is_refused and not each.is_own):
                connection.hand_over(request, self._serve(request, connection))
            elif found is None or refusal is not None:
                connection.respond(*client.refuse(refusal or _LOST, request))
            else:
                client.respond(found, self._hold, is_own=each.is_own)
                served += 1
        return served

    async def _response(self, head: bytes, body: bytes) -> InternalResponse | None:
        """Run the request, and again if the run failed; None if no response is complete. Raises ResponseTooLarge."""
        found: InternalResponse | None = None
        for _ in range(MAX_TRIES):
            self._hold.again()
            self._parts.clear()
            try:
                found = await self._requests.requests.send(head, body, self._on_part)
            except ResponseTooLarge:
                raise
            except ConnectionLost as error:
                log.warning("a shared response was lost", error=str(error))
                if self._stream is not None:
                    self._is_cut = isinstance(error, ResponseCut)
                    return None
                continue
            if found.status < 500:
                break
        return found

    def _refusal(self, client: Client, headers: dict[bytes, bytes]) -> Refusal | None:
        """Why a client may not receive more of the response, whose `headers` name the serving region."""
        if client.context is None:
            return None
        return self._reauthorize(client.context, headers.get(b"x-penstock-region", b"").decode("latin-1"))

    # streams

    def _on_part(self, part: ResponsePart) -> bool:
        """Send a part of a stream to all clients; returns False for another response."""
        if self._stream is None:
            if not _is_stream(part) and not self._is_sent_as_it_arrives(part):
                return False
            self._stream = part
        for client in self._clients:
            self._begin(client)
        for client in [*self._clients]:
            refusal = self._refusal(client.client, part.headers)
            if refusal is not None:
                self._clients.remove(client)
                client.end_with_error(refusal)
        self._beginning.append(part.content)
        self._beginning_bytes += len(part.content)
        if self._beginning_bytes > MAX_REPLAYED_BYTES:
            self._on_full()
            self._beginning.clear()
        for client in self._clients:
            client.send(part.content)
        limit_bytes = min(MAX_BEHIND_BYTES, MAX_COPIED_BYTES // max(1, len(self._clients)))
        far_behind = [each for each in self._clients if each.behind_bytes > limit_bytes]
        # Clients that are all slow delay the engine, and none is behind another one.
        for client in far_behind if any(each.is_writable for each in self._clients) else ():
            self._clients.remove(client)
            client.end_with_error(_TOO_SLOW)
        self.clients_changed()
        return True

    def _is_sent_as_it_arrives(self, part: ResponsePart) -> bool:
        """Keep a part of a response that is no stream. Without room for it, the only client receives the response as a
        stream, and it is not kept; the requests of several clients run by themselves."""
        self._parts.append(part.content)
        if self._hold.received(len(part.content)):
            return False
        if len(self._clients) != 1 or part.status >= 500:
            part.fail(ResponseTooLarge("the large responses of all runs hold too much memory"))
            return False
        self._beginning, self._parts = self._parts[:-1], []
        # So long a beginning that no further client joins.
        self._beginning_bytes = sum(map(len, self._beginning))
        return True

    def _begin(self, client: RunClient) -> None:
        """Send what has arrived to a client that has received nothing."""
        if self._stream is not None and not client.has_begun and client in self._clients:
            client.begin(self._stream, b"".join(self._beginning))

    def _end_streams(self, clients: list[RunClient], *, complete: bool) -> int:
        """End the streams; returns the number of clients that have received all."""
        for client in clients:
            client.end(complete=complete, is_cut=self._is_cut)
        return len(clients) if complete else 0


class RunClient(CompleteRequest):
    """The handler of a client's request that shares a run."""

    def __init__(self, run: SharedRun, client: Client, *, is_own: bool) -> None:
        self.client = client
        self.is_own = is_own
        """Whether the run is that of this client's tenant and key."""
        self._run = run
        self._response: ClientResponse | None = None
        self._request_id = ""
        self.behind_bytes = 0
        """Bytes that were written since the client could not receive."""
        self.is_writable = True
        """Whether the client can receive."""

    @property
    def has_begun(self) -> bool:
        """Whether the client has received a part of a stream."""
        return self._response is not None

    def begin(self, stream: ResponsePart, beginning: bytes) -> None:
        """Send the head of a stream, and its beginning."""
        request = self.client.request
        own_lines = with_common_lines(_lines(stream.headers, is_own=self.is_own), request)
        by_name = {name: value for name, value in stream.headers.items() if name not in _OWN_FRAMING}
        response = self._response = ClientResponse(self.client.connection, request)
        response.start(ResponseHead(stream.status, [*by_name.items()], by_name), b"".join(own_lines))
        self._request_id = stream.headers.get(b"x-request-id", b"").decode("latin-1")
        if beginning:
            response.add(beginning)
        response.flush()

    def send(self, part: bytes) -> None:
        """Send a part of a stream."""
        response = self._response
        assert response is not None
        response.add(part)
        response.flush()
        if not self.is_writable:
            self.behind_bytes += len(part)

    def end(self, *, complete: bool, is_cut: bool) -> None:
        """End a stream as that of one client: one that is neither complete nor cut after its error breaks off."""
        response, connection = self._response, self.client.connection
        assert response is not None
        if not complete and not is_cut:
            connection.abort()
            return
        if is_cut:
            response.cut()
        response.end()
        connection.finished(keep_alive=response.keep_alive)

    def end_with_error(self, refusal: Refusal) -> None:
        """End the stream of one client with an error."""
        response, connection = self._response, self.client.connection
        assert response is not None
        error_format = error_format_of(self.client.request)
        if response.end_with_error(refusal, error_format, self._request_id, to_peer=False):
            connection.finished(keep_alive=response.keep_alive)
        else:
            connection.abort()

    # Handler

    def on_client_gone(self) -> None:
        """Leave the run."""
        self._run.leave(self)

    def on_client_writable(self, writable: bool) -> None:
        """Apply the client's back-pressure to the run, if all its clients are as slow."""
        self.is_writable = writable
        if writable:
            self.behind_bytes = 0
        self._run.clients_changed()

    def on_request_refused(self, refusal: Refusal) -> None:
        """Leave the run, and refuse the request: another tenant needs the memory of its body."""
        self._run.leave(self)
        client = self.client
        if self.has_begun:
            client.connection.abort()
        else:
            client.connection.respond(*client.refuse(refusal, client.request))

    def drop_body(self) -> bool:
        """Drop the body if the request will not be sent: its stream has begun."""
        if self.has_begun:
            self.client.connection.listener.bodies.drop(self.client.request)
        return self.has_begun


def _is_stream(part: ResponsePart) -> bool:
    """Whether a response is sent as it arrives."""
    media_type = part.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    is_stream = media_type == EVENT_STREAM_TYPE or media_type in NDJSON_TYPES
    return is_stream and part.status == 200 and b"content-encoding" not in part.headers


def _lines(headers: dict[bytes, bytes], *, is_own: bool) -> list[bytes]:
    """The header lines for a client; cookies and what is left of budgets are those of the sender of the run alone."""
    return [
        b"%b: %b\r\n" % header
        for header in headers.items()
        if header[0] not in _OWN_FRAMING and (is_own or not header[0].startswith(_OF_SENDER))
    ]
