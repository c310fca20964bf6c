"""Identical deterministic requests in flight share one engine run (request coalescing), or a kept response.

The first request starts the run, others of the same tenant, or of tenants that share runs, receive its response. A
client that leaves does not end the run; the last one does. A request whose response the policy keeps runs here, too,
because its whole response is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
from msgspec import UNSET

from penstock.accounts.outcome_rules import Outcome
from penstock.http.header_rules import SESSION_HEADERS
from penstock.policy.kinds import result_cache
from penstock.policy.policy import Policy
from penstock.result_cache.cache_key import keeps_route
from penstock.routes.deterministic_requests import deterministic_request
from penstock.routes.route import ModelSource
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.permissions import permits_name
from regional_agent.coalescing.run_memory import RunHold, RunMemory
from regional_agent.coalescing.shared_run import Client, Refuse, RunHeaders, RunRequests, Serve, SharedRun
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.http.request_handler import Handler
from regional_agent.http.waiting_request import WaitingRequest
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.authorization import Authorization, Sender, refuse_route
from regional_agent.requests.request_context import RequestContext
from regional_agent.result_cache.result_cache import AgentResultCache, CacheUse, request_wishes
from regional_agent.result_cache.stored_bodies import StoredBody

MAX_RESPONSE_BYTES: Final = result_cache.MAX_RESPONSE_BYTES
"""Maximum size (bytes) of a shared response that is not streamed. The requests for a larger one run by themselves."""

_TO_ENGINE: Final = (b"anthropic-beta", b"anthropic-version", b"openai-beta")
"""Header fields of clients that engines read."""

NOT_KEPT: Final = Refusal(Reason.NOT_KEPT, "no response to the request is kept, and `only-if-cached` permits no run")

log = structlog.get_logger()


Connect = Callable[[Sender], RunRequests]
"""Returns what sends requests as a sender."""
Read = Callable[[Policy, Request, Sender], RequestContext | Refusal]
"""Returns the context of a request that is no demand of its own, or its refusal."""
Key = tuple[object, ...]


class Taken(NamedTuple):
    """A request that needs no handling besides that of `handler`; None if it was answered."""

    handler: Handler | None


class SharedRuns:
    """The runs in progress of one agent."""

    def __init__(
        self,
        authorization: Authorization,
        read: Read,
        connect: Connect,
        serve: Serve,
        proxy: Proxy,
    ) -> None:
        """Start without a run."""
        self._authorization = authorization
        self._read = read
        self._connect = connect
        self._serve = serve
        self._reauthorize = proxy.router.reauthorization.reauthorize
        self._metrics = proxy.metrics.coalescing
        self._runs: dict[Key, SharedRun] = {}
        self._memory = RunMemory()
        self.cache: AgentResultCache | None = None
        """The kept responses; None keeps none."""

    def take(self, policy: Policy, request: Request, connection: ClientConnection, refuse: Refuse) -> Taken | None:
        """Take over a request that shares a run or a response; None for a request that runs by itself."""
        coalescing, route, cache = policy.coalescing, request.route, self.cache
        if route is None:
            return None
        is_shared = coalescing is not UNSET and permits_name((coalescing.routes,), route.name)
        wishes = None if cache is None or not keeps_route(policy, route.name) else request_wishes(request)
        if not is_shared and wishes is None:
            return None
        only_kept = wishes is not None and wishes.only_kept
        # Special headers ask for more than the response.
        is_simple = request.method == b"POST" and request.plain and request.whole
        found = deterministic_request(route, request.body) if is_simple else None
        if found is None and not only_kept:
            return None
        sender = self._authorization.sender_of(policy, request, connection.peer_ip)
        if not isinstance(sender, Sender) or refuse_route(sender.principal, request) is not None:
            return None
        headers, use = _headers_of(policy, request), None
        if cache is not None and wishes is not None and found is not None and not found.is_stream:
            use = cache.use_of(policy, request, sender, wishes, found.body, headers.to_engine)
        if use is None and only_kept:
            use = NOT_KEPT
        if isinstance(use, Refusal):
            connection.respond(*refuse(use, request))
            return Taken(None)
        if found is None or (use is None and not is_shared):
            return None
        context = self._context(policy, request, sender) if is_shared else None
        if isinstance(context, Refusal):
            if use is not None:
                use.release()
            connection.respond(*refuse(context, request))
            return Taken(None)
        key: Key = (
            # A change of policy may withdraw the version that serves a run in progress.
            policy.digest(),
            *_owner(sender, context),
            route.name,
            request.target,
            found.body,
            headers,
            use.key if use is not None else b"",
        )
        client = Client(request, connection, refuse, use, headers, (sender.tenant.name, sender.principal.key), context)

        def run() -> Handler | None:
            if use is not None and only_kept:
                use.missed()
                connection.respond(*refuse(NOT_KEPT, request))
                return None
            return self._join(key if is_shared else (object(),), sender, client)

        if use is None:
            return Taken(run())
        kept = use.find_here()
        if kept is not None:
            return Taken(use.send(kept, connection, refuse))
        return Taken(_look_up(client, use, run) if use.asks_others else run())

    def _context(self, policy: Policy, request: Request, sender: Sender) -> RequestContext | Refusal | None:
        """Return the context of a request that may share the run of another tenant, or its refusal; None for one that
        may not."""
        coalescing = policy.coalescing
        is_shared = coalescing is not UNSET and permits_name((coalescing.shared_by,), sender.tenant.name)
        return self._read(policy, request, sender) if is_shared else None

    def _join(self, key: Key, sender: Sender, client: Client) -> Handler:
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
            hold = RunHold(self._memory, sender.tenant.name)
            run = SharedRun(self._connect(sender), self._serve, self._reauthorize, self._metrics, hold)
            self._runs[key] = run
            run.start(head, bytes(request.body), lambda: self._forget(key, run))
        else:
            self._metrics.shared.inc()
        return run.join(client)

    def _forget(self, key: Key, run: SharedRun) -> None:
        """Let no further client join a run."""
        if self._runs.get(key) is run:
            del self._runs[key]


def _owner(sender: Sender, context: RequestContext | None) -> Key:
    """Return whose requests may share the run of a request.

    Tenants that share runs do so if both may use the model, in the same regions.
    """
    if context is None:
        principal = sender.principal
        return principal.tenant.name, principal.key, principal.models, sender.facts
    return context.model, context.estimate.adapter, context.residency.permitted.name, sender.facts.data_class


def _headers_of(policy: Policy, request: Request) -> RunHeaders:
    """Return the header fields on which the response depends."""
    names = (
        set() if request.reader is None else {name.encode() for name in request.reader.by_source[ModelSource.HEADER]}
    )
    if policy.versions:
        names.update(SESSION_HEADERS)
    if policy.model_rollouts is not UNSET:
        names |= {each.header.encode() for each in policy.model_rollouts.values() if each.header is not UNSET}
    headers = sorted(request.headers)
    return RunHeaders(
        tuple(header for header in headers if header[0] in _TO_ENGINE),
        tuple(header for header in headers if header[0] in names and header[0] not in _TO_ENGINE),
    )


def _look_up(client: Client, use: CacheUse, run: Callable[[], Handler | None]) -> WaitingRequest:
    """Look up a response in the region's Redis and job store; `run` runs the request if there is none."""
    request, connection = client.request, client.connection

    async def look_up() -> None:
        try:
            found = await use.find_elsewhere()
            if found is None:
                handler = run()
                if handler is not None:
                    connection.hand_over(request, handler)
            elif isinstance(found, StoredBody):
                connection.hand_over(request, use.stream(found, connection, client.refuse))
            else:
                connection.hand_over(request, use.send(found, connection, client.refuse))
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
