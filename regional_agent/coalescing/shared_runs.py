"""Identical deterministic requests in flight share one engine run (request coalescing), or a kept response.

The first request starts the run, others of the same tenant wait for its response. A client that leaves does not end
the run; the last one does. A request whose response the policy keeps runs here, too, because its whole response is
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
from msgspec import UNSET

from penstock.accounts.outcome_rules import Outcome
from penstock.policy.policy import Policy
from penstock.result_cache.cache_key import keeps_route
from penstock.routes.deterministic_requests import canonical_body
from penstock.routes.route import ModelSource
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.permissions import permits_name
from regional_agent.coalescing.coalescing_metrics import CoalescingMetrics
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.headers.header_rules import HOP_BY_HOP, Header
from regional_agent.http.messages import Request
from regional_agent.http.request_handler import Handler
from regional_agent.http.waiting_request import WaitingRequest
from regional_agent.jobs.internal_connection import ConnectionLost, InternalRequests, InternalResponse, ResponseTooLarge
from regional_agent.requests.authorization import Authorization, Sender, refuse_route
from regional_agent.requests.work_estimate import SESSION_HEADER
from regional_agent.result_cache.result_cache import AgentResultCache, CacheUse

MAX_TRIES: Final = 2
"""Runs of a shared request: a failure of the first does not fail all clients."""

MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size (bytes) of a shared response. The requests for a larger one run by themselves."""

MAX_COPIED_BYTES: Final = 256 * 1024 * 1024
"""Maximum size (bytes) of the copies of one shared response, which are in memory until slow clients have received
them. The requests of further clients run by themselves."""

_TO_ENGINE: Final = (b"anthropic-beta", b"anthropic-version", b"openai-beta")
"""Header fields of clients that engines read."""

_OWN_FRAMING: Final = HOP_BY_HOP | {b"content-length"}

_LOST: Final = Refusal(Reason.ENGINE_FAILED, "the shared response was incomplete")

log = structlog.get_logger()


class RunRequests(NamedTuple):
    """What sends the requests of one run."""

    requests: InternalRequests
    gpu_s: Callable[[], float]
    """Estimated GPU seconds of the request that was sent."""


Connect = Callable[[Sender], RunRequests]
"""Returns what sends requests as a sender."""
Refuse = Callable[[Refusal, Request], tuple[int, list[bytes], bytes]]
Serve = Callable[[Request, ClientConnection], Handler | None]
"""Runs a request by itself."""
Key = tuple[object, ...]


class Taken(NamedTuple):
    """A request that needs no handling besides that of `handler`; None if it was answered."""

    handler: Handler | None


class SharedRuns:
    """The runs in progress of one agent."""

    def __init__(
        self, authorization: Authorization, connect: Connect, serve: Serve, metrics: CoalescingMetrics
    ) -> None:
        """Start without a run."""
        self._authorization = authorization
        self._connect = connect
        self._serve = serve
        self._metrics = metrics
        self._runs: dict[Key, SharedRun] = {}
        self.cache: AgentResultCache | None = None
        """The kept responses; None keeps none."""

    def take(self, policy: Policy, request: Request, connection: ClientConnection, refuse: Refuse) -> Taken | None:
        """Take over a request that shares a run or a response; None for a request that runs by itself."""
        coalescing, route, cache = policy.coalescing, request.route, self.cache
        # Special headers ask for more than the response.
        if route is None or request.method != b"POST" or not request.plain or not request.whole:
            return None
        is_shared = coalescing is not UNSET and permits_name((coalescing.routes,), route.name)
        if not is_shared and (cache is None or not keeps_route(policy, route.name)):
            return None
        body = canonical_body(route, request.body)
        sender = self._authorization.sender_of(policy, request, connection.peer_ip) if body is not None else None
        if body is None or not isinstance(sender, Sender) or refuse_route(sender.principal, request) is not None:
            return None
        headers = _headers_of(policy, request)
        use = None if cache is None else cache.use_of(policy, request, sender, body, headers.to_engine)
        if isinstance(use, Refusal):
            connection.respond(*refuse(use, request))
            return Taken(None)
        if use is None and not is_shared:
            return None
        principal = sender.principal
        facts = (principal.tenant.name, principal.key, principal.models, sender.facts, route.name, request.target, body)
        key: Key = (*facts, headers, use.key if use is not None else b"")
        client = Client(request, connection, refuse, use, headers)

        def run() -> WaitingRequest:
            return self._join(key if is_shared else (object(),), sender, client)

        if use is None:
            return Taken(run())
        found = use.find_here()
        if found is not None:
            use.send(found, connection)
            return Taken(None)
        return Taken(_look_up(client, use, run) if use.asks_redis else run())

    def _join(self, key: Key, sender: Sender, client: Client) -> WaitingRequest:
        """Let a client wait for the response of a run that is in progress, or that starts now."""
        request, use = client.request, client.use
        if use is not None:
            use.missed()
        run = self._runs.get(key)
        if run is None:
            head = b"%b %b HTTP/1.1\r\nhost: penstock\r\ncontent-type: application/json\r\n" % (
                request.method,
                request.target,
            )
            headers = (*client.headers.to_engine, *client.headers.choosing)
            head += b"".join([b"%b: %b\r\n" % header for header in headers])
            run = self._runs[key] = SharedRun(
                self._connect(sender), head, bytes(request.body), self._serve, self._metrics
            )
            run.start(lambda: self._runs.pop(key, None))
        else:
            self._metrics.shared.inc()
        return run.join(client)


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

    def respond(self, found: InternalResponse) -> None:
        """Send the response of the run."""
        lines = [b"%b: %b\r\n" % (name, value) for name, value in found.headers.items() if name not in _OWN_FRAMING]
        if self.use is None:
            self.connection.respond(found.status, lines, found.body)
        else:
            self.connection.respond(*self.use.answer(found, lines))


class SharedRun:
    """One run, and the clients that wait for it."""

    def __init__(
        self, requests: RunRequests, head: bytes, body: bytes, serve: Serve, metrics: CoalescingMetrics
    ) -> None:
        self._requests = requests
        self._head = head
        self._body = body
        self._serve = serve
        self._metrics = metrics
        self._waiting: dict[WaitingRequest, Client] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, on_end: Callable[[], object]) -> None:
        """Start to run; `on_end` is called before the clients receive the response."""
        self._on_end = on_end
        self._task = asyncio.create_task(self._run(), name="shared request")

    def join(self, client: Client) -> WaitingRequest:
        """Add a client."""

        def refuse(refusal: Refusal) -> None:
            self.leave(response)
            client.connection.respond(*client.refuse(refusal, client.request))

        response = WaitingRequest(lambda: self.leave(response), refuse)
        self._waiting[response] = client
        return response

    def leave(self, response: WaitingRequest) -> None:
        """Remove a client that has disconnected; the last one ends the run."""
        if response not in self._waiting:
            return
        del self._waiting[response]
        if not self._waiting and self._task is not None:
            self._on_end()
            self._task.cancel()

    async def _run(self) -> None:
        found: InternalResponse | None = None
        is_too_large = False
        try:
            found = await self._response()
        except ResponseTooLarge:
            is_too_large = True
        except Exception:
            log.exception("a shared request failed")
        self._on_end()
        waiting, self._waiting = [*self._waiting.values()], {}
        use = next((each.use for each in waiting), None)
        left_bytes, responses = MAX_COPIED_BYTES, 0
        for each in waiting:
            left_bytes -= 0 if found is None else len(found.body)
            request, connection = each.request, each.connection
            if is_too_large or left_bytes < 0:
                connection.hand_over(request, self._serve(request, connection))
            elif found is None:
                connection.respond(*each.refuse(_LOST, request))
            else:
                each.respond(found)
                responses += 1
        self._metrics.saved_gpu_s.inc(max(0, responses - 1) * self._requests.gpu_s())
        if found is not None and use is not None:
            use.keep(found)

    async def _response(self) -> InternalResponse | None:
        """Run the request, and again if the run failed; None if no response is complete. Raises ResponseTooLarge."""
        found: InternalResponse | None = None
        for _ in range(MAX_TRIES):
            try:
                found = await self._requests.requests.send(self._head, self._body)
            except ResponseTooLarge:
                raise
            except ConnectionLost as error:
                log.warning("a shared response was lost", error=str(error))
                continue
            if found.status < 500:
                break
        return found


def _headers_of(policy: Policy, request: Request) -> RunHeaders:
    """Return the header fields on which the response depends."""
    names = (
        set() if request.reader is None else {name.encode() for name in request.reader.by_source[ModelSource.HEADER]}
    )
    if policy.versions:
        names.add(SESSION_HEADER)
    if policy.model_rollouts is not UNSET:
        names |= {each.header.encode() for each in policy.model_rollouts.values() if each.header is not UNSET}
    headers = sorted(request.headers)
    return RunHeaders(
        tuple(header for header in headers if header[0] in _TO_ENGINE),
        tuple(header for header in headers if header[0] in names and header[0] not in _TO_ENGINE),
    )


def _look_up(client: Client, use: CacheUse, run: Callable[[], Handler]) -> WaitingRequest:
    """Look up a response in the region's Redis; `run` runs the request if there is none."""
    request, connection = client.request, client.connection

    async def look_up() -> None:
        try:
            found = await use.find_shared()
            if found is not None:
                use.send(found, connection)
            else:
                connection.hand_over(request, run())
        except Exception:
            log.exception("looking up a kept response failed")
            use.release()
            connection.abort()

    def leave() -> None:
        task.cancel()
        use.end(Outcome.CLIENT_LEFT)

    def refuse(refusal: Refusal) -> None:
        task.cancel()
        use.release()
        connection.respond(*client.refuse(refusal, request))

    task = asyncio.create_task(look_up(), name="result lookup")
    return WaitingRequest(leave, refuse)
