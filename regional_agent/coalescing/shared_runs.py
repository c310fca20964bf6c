"""Identical deterministic requests in flight share one engine run (request coalescing).

The first request starts the run, others of the same tenant wait for its response. A client that leaves does not end
the run; the last one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from penstock.policy.policy import Policy
from penstock.routes.deterministic_requests import canonical_body
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.permissions import permits_name
from regional_agent.coalescing.coalescing_metrics import CoalescingMetrics
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.headers.header_rules import HOP_BY_HOP
from regional_agent.http.messages import Request
from regional_agent.http.request_handler import Handler
from regional_agent.jobs.internal_connection import ConnectionLost, InternalRequests, InternalResponse, ResponseTooLarge
from regional_agent.requests.authorization import Authorization, Sender, refuse_route

MAX_TRIES: Final = 2
"""Runs of a shared request: a failure of the first does not fail all clients."""

MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size (bytes) of a shared response. The requests for a larger one run by themselves."""

_OWN_FRAMING: Final = HOP_BY_HOP | {b"content-length"}

_LOST: Final = Refusal(Reason.ENGINE_FAILED, "the shared response was incomplete")

log = structlog.get_logger()

Connect = Callable[[Sender], InternalRequests]
"""Returns what sends requests as a sender."""
Refuse = Callable[[Refusal, Request], tuple[int, list[bytes], bytes]]
Serve = Callable[[Request, ClientConnection], Handler | None]
"""Runs a request by itself."""
Key = tuple[object, ...]


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

    def share(self, policy: Policy, request: Request, connection: ClientConnection, refuse: Refuse) -> Handler | None:
        """Return the handler of a request that shares a run; None for a request that runs by itself."""
        coalescing, route = policy.coalescing, request.route
        # Special headers ask for more than the response.
        if not coalescing or route is None or not request.plain or not request.whole:
            return None
        if not permits_name((coalescing.routes,), route.name):
            return None
        body = canonical_body(route, request.body)
        sender = self._authorization.sender_of(policy, request, connection.peer_ip) if body is not None else None
        if not isinstance(sender, Sender) or refuse_route(sender.principal, request) is not None:
            return None
        principal = sender.principal
        key = (principal.tenant.name, principal.key, principal.models, sender.facts, route.name, request.target, body)
        run = self._runs.get(key)
        if run is None:
            head = b"%b %b HTTP/1.1\r\nhost: penstock\r\ncontent-type: application/json\r\n" % (
                request.method,
                request.target,
            )
            run = self._runs[key] = SharedRun(self._connect(sender), head, bytes(request.body), refuse, self._serve)
            run.start(lambda: self._runs.pop(key, None))
        else:
            self._metrics.shared.inc()
        return run.join(request, connection)


class SharedRun:
    """One run, and the clients that wait for it."""

    def __init__(self, requests: InternalRequests, head: bytes, body: bytes, refuse: Refuse, serve: Serve) -> None:
        self._requests = requests
        self._head = head
        self._body = body
        self._refuse = refuse
        self._serve = serve
        self._waiting: set[SharedResponse] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, on_end: Callable[[], object]) -> None:
        """Start to run; `on_end` is called before the clients receive the response."""
        self._on_end = on_end
        self._task = asyncio.create_task(self._run(), name="shared request")

    def join(self, request: Request, connection: ClientConnection) -> SharedResponse:
        """Add a client."""
        response = SharedResponse(self, request, connection)
        self._waiting.add(response)
        return response

    def leave(self, response: SharedResponse) -> None:
        """Remove a client that has disconnected; the last one ends the run."""
        if response not in self._waiting:
            return
        self._waiting.remove(response)
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
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            request, connection = each.request, each.connection
            if is_too_large:
                connection.hand_over(request, self._serve(request, connection))
            elif found is None:
                connection.respond(*self._refuse(_LOST, request))
            else:
                lines = [
                    b"%b: %b\r\n" % (name, value) for name, value in found.headers.items() if name not in _OWN_FRAMING
                ]
                connection.respond(found.status, lines, found.body)

    async def _response(self) -> InternalResponse | None:
        """Run the request, and again if the run failed; None if no response is complete. Raises ResponseTooLarge."""
        found: InternalResponse | None = None
        for _ in range(MAX_TRIES):
            try:
                found = await self._requests.send(self._head, self._body)
            except ResponseTooLarge:
                raise
            except ConnectionLost as error:
                log.warning("a shared response was lost", error=str(error))
                continue
            if found.status < 500:
                break
        return found


class SharedResponse:
    """The handler of one client's request."""

    def __init__(self, run: SharedRun, request: Request, connection: ClientConnection) -> None:
        self._run = run
        self.request = request
        self.connection = connection

    def on_client_gone(self) -> None:
        """Leave the run."""
        self._run.leave(self)

    def on_client_writable(self, writable: bool) -> None:
        """Do nothing: no part of the response has been written."""

    def on_request_body(self, chunk: bytes) -> None:
        """Not called: only complete requests share a run."""

    def on_request_end(self) -> None:
        """Not called: only complete requests share a run."""

    def on_request_refused(self, refusal: Refusal) -> None:
        """Leave the run, and refuse the request."""
        self._run.leave(self)
        self.connection.respond(*self._run._refuse(refusal, self.request))

    def drop_body(self) -> bool:
        """Return False: the request may yet run by itself."""
        return False
