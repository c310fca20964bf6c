"""The service for clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal
from regional_agent.coalescing.shared_run import RunRequests
from regional_agent.coalescing.shared_runs import MAX_RESPONSE_BYTES, SharedRuns
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.http.body_limits import HeadPostponed
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.headers.cors import cors_lines, preflight_lines
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.request_handler import Handler
from regional_agent.http.waiting_request import serve_after
from regional_agent.jobs.api.job_paths import is_path
from regional_agent.jobs.api.job_routes import JobRoutes
from regional_agent.jobs.internal_connection import InternalRequests
from regional_agent.proxy.exchange_start import start_exchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.requests.authorization import NO_POLICY, Sender, model_not_found
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.model_name import can_start_early
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.request_options import NO_OPTIONS, options_of
from regional_agent.result_cache.result_cache import AgentResultCache
from regional_agent.services.model_list import (
    ANTHROPIC_HEADER,
    OLLAMA_PATH,
    anthropic_route,
    is_model_page,
    model_page,
    ollama_route,
)
from regional_agent.services.service import HEALTH_PATHS, JSON, LEDGER_FULL, READS, RoutedService, health_response
from regional_agent.services.shared_run_service import SharedRunService
from regional_agent.tenants.token_authentication import KEY_AWAITED
from regional_agent.versions.shadow_requests import RequestCopies

_NO_ROUTE: Final = frozenset({Reason.NOT_FOUND, Reason.NOT_OFFERED})
_NO_JOB_STORE: Final = Refusal(Reason.NOT_OFFERED, "no JobStore of the policy in force covers this region")


class TrafficService(RoutedService):
    """The service for clients: the routes of the policy, the list of models, and health checks for load balancers."""

    def __init__(
        self,
        reader: ClientRequestReader,
        proxy: Proxy,
        config: ActiveConfig,
        readiness: Readiness,
        endpoints: EndpointSet,
        jobs: JobRoutes | None = None,
    ) -> None:
        """Create the service for clients.

        Args:
            reader: reads the requests of clients.
            proxy: sends requests to their targets.
            config: the policy in force, for the list of models.
            readiness: answers health checks.
            endpoints: the endpoints of this region, whose adapters are in the list of models.
            jobs: the APIs of files and batches; None offers none.
        """
        super().__init__(proxy, config, reader.objects)
        self._reader = reader
        self._authorization = reader.authorization
        self._readiness = readiness
        self._endpoints = endpoints
        self._jobs = jobs
        self.copies: RequestCopies | None = None
        """Copies requests for a version in a rollout; None copies none."""
        self._shared_runs = SharedRuns(reader.authorization, self._read_shared, self._connect, self._serve, proxy)

    def _handle(self, request: Request, connection: ClientConnection, refusal: Refusal | None) -> Handler | None:
        """Proxy a request of a route; respond directly to a request for the list of models and to a health check."""
        if not request.plain and (preflight := self.preflight(request)) is not None:
            connection.respond(*preflight)
            return None
        if refusal is None:
            if not request.plain and self._jobs is not None and self._jobs.defers(request):
                return self._handler_of(self._jobs.submit(request, connection, self.refuse), request, connection)
            policy = self._config.policy
            if policy is not None and policy.reuses_results:
                taken = self._shared_runs.take(policy, request, connection, self.refuse)
                if taken is not None:
                    return taken.handler
            owner = self.owner_of_objects(request, connection.peer_ip)
            if isinstance(owner, Refusal):
                return self._handler_of(owner, request, connection)
            if owner:
                lookup = self._look_up(
                    request,
                    connection,
                    owner,
                    self._serve,
                    lambda: self.regions_with_objects(request, connection.peer_ip),
                )
                if lookup is not None:
                    return lookup
        elif self._is_job(request):
            assert self._jobs is not None
            return self._handler_of(self._jobs.handle(request, connection, self.refuse), request, connection)
        return self._serve(request, connection, refusal)

    def _handler_of(self, found: Handler | Refusal, request: Request, connection: ClientConnection) -> Handler | None:
        """Return the handler of a request, or respond with its refusal. A request whose key or lease is awaited is
        handled from the beginning afterwards."""
        if not isinstance(found, Refusal):
            return found
        wait = self.awaited(found, request) if request.whole else None
        if wait is not None:
            return serve_after(wait(), request, connection, self._handle_again)
        self._refuse(connection, request, found)
        return None

    def awaited(self, refusal: Refusal, request: Request) -> Callable[[], Awaitable[None]] | None:
        """Return what a refused request waits for before it is handled again; None if it stays refused."""
        if refusal.awaits_lease:
            budgets = self._authorization.budgets
            request.waits_until = min(request.waits_until, self._proxy.clock() + budgets.max_wait_s)
            return budgets.wait_for_lease
        return self.wait_for_key if refusal is KEY_AWAITED else None

    def _handle_again(self, request: Request, connection: ClientConnection, refusal: Refusal | None) -> Handler | None:
        return self.handle(request, connection) if refusal is None else self._serve(request, connection, refusal)

    def wait_for_key(self) -> Awaitable[None]:
        """Wait until the key of a request that was refused with KEY_AWAITED is known, or will not be."""
        return self._config.issuers.wait_changed()

    def keep_results(self, cache: AgentResultCache) -> None:
        """Keep responses where policy permits it."""
        self._shared_runs.cache = cache

    def _read_shared(self, policy: Policy, request: Request, sender: Sender) -> RequestContext | Refusal:
        """Return the context of a request that may share the run of another tenant, without its reservation."""
        now, timeout_s = self._proxy.clock(), self._proxy.limits.request_timeout_s
        context = self._reader.without_demand().read(policy, request, sender, now, inf, timeout_s)
        if isinstance(context, RequestContext) and context.reservation is not None:
            context.reservation.give_back(now)
        return context

    def _connect(self, sender: Sender) -> RunRequests:
        """Return what sends requests as a sender that this service has authenticated."""
        service = SharedRunService(self._reader, self._proxy, self._config, sender)
        header = self._authorization.location_header
        requests = InternalRequests(service, self._proxy.limits, header, MAX_RESPONSE_BYTES)
        return RunRequests(requests, lambda: service.gpu_s)

    def owner_of_objects(self, request: Request, peer_ip: str) -> str | Refusal:
        """Return the tenant of a request that may name objects, or the refusal of its key; empty if its route has none.

        Args:
            peer_ip: the address of the TCP peer.
        """
        route = request.route
        if route is None or not (route.object_id or route.previous_object or route.client_object):
            return ""
        principal = self._authorization.principal_of(request, peer_ip)
        return principal if isinstance(principal, Refusal) else principal.tenant.name

    def regions_with_objects(self, request: Request, peer_ip: str) -> Collection[str]:
        """Return the other regions that may have the object of a request: those that may serve it.

        None for an identifier that the client chose, which is new with each client.
        """
        policy, route = self._config.policy, request.route
        if policy is None or route is None or not (route.object_parameter or route.continues_objects):
            return ()
        sender = self._authorization.sender_of(policy, request, peer_ip)
        if not isinstance(sender, Sender):
            return ()
        mask = self._authorization.residency(policy, sender.facts)
        return () if isinstance(mask, Refusal) else mask.permitted.regions

    def _serve(self, request: Request, connection: ClientConnection, refusal: Refusal | None = None) -> Handler | None:
        """Handle a request whose objects have been looked up; `refusal` if it is refused."""
        if refusal is None:
            context = self.read(request, connection.peer_ip)
            if isinstance(context, RequestContext):
                exchange = start_exchange(self._proxy, connection, context)
                if self._reader.plan is not None:
                    self.consider_copy(context, connection.peer_ip)
                return exchange
            refusal = context
        path = request.path
        if request.route is not None:
            return self._handler_of(refusal, request, connection)
        if self.lists_models(request):
            page = self.models(request, connection.peer_ip)
            if isinstance(page, Refusal):
                return self._handler_of(page, request, connection)
            connection.respond(*page)
        elif path in HEALTH_PATHS:
            connection.respond(*self.health(path, shutting_down=connection.listener.draining))
        else:
            self._refuse(connection, request, refusal)
        return None

    def health(self, path: bytes, *, shutting_down: bool = False) -> tuple[int, list[bytes], bytes]:
        """Return the response to a health check, one of `HEALTH_PATHS`."""
        shutting_down = shutting_down or self._readiness.shutting_down
        return health_response(self._readiness, path, shutting_down=shutting_down)

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Count a rejected request and return its response, which a page of a permitted origin may read."""
        if request is not None:
            self._permit_origin(request)
        return super().refuse(refusal, request)

    def _permit_origin(self, request: Request) -> None:
        policy = self._config.policy
        if policy is not None and policy.cors_origins:
            request.cors_lines = cors_lines(request, policy.cors_origins)

    def preflight(self, request: Request) -> tuple[int, list[bytes], bytes] | None:
        """Permit the origin of a request to read the response; returns the response to a preflight request."""
        self._permit_origin(request)
        lines = preflight_lines(request) if request.is_of_permitted_origin else None
        return None if lines is None else (200, lines, b"")

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | HeadPostponed | Refusal:
        """Reject a request of an unknown tenant, or of a tenant whose budget is used up, before its body is read."""
        found: AcceptedHead | Refusal
        refusal = self.refuse_route(request)
        if refusal is None:
            now = self._proxy.clock()
            request.may_wait = now < request.waits_until
            found = self._authorization.accept_head(request, peer_ip, now)
            request.may_wait = False
        elif self._jobs is not None and self._is_job(request):
            found = self._jobs.accept_head(request, peer_ip)
        else:
            return refusal
        wait = self.awaited(found, request) if isinstance(found, Refusal) else None
        return found if wait is None else HeadPostponed(wait)

    def _without_route(self, request: Request, refusal: Refusal) -> Refusal:
        """Refuse a request for the APIs of files and batches for the lack of a job store."""
        if refusal.reason in _NO_ROUTE and is_path(request.path) and not self._is_job(request):
            return _NO_JOB_STORE
        return refusal

    def _is_job(self, request: Request) -> bool:
        """Whether a request is for the APIs of files and batches, and the policy in force offers them here."""
        return request.route is None and self._jobs is not None and self._jobs.serves(request)

    def consider_copy(self, context: RequestContext, peer_ip: str) -> None:
        """Copy a request for a version in a rollout, if it is in the sample; its body is still there."""
        if self.copies is not None and self._reader.plan is not None:
            self.copies.consider(self._reader.plan, context, peer_ip)

    def release_head(self, head: AcceptedHead) -> None:
        """Give back what a request reserved that ended before it had a context."""
        self._authorization.release_head(head, self._proxy.clock())

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Reject a request whose API key was revoked, or whose residency forbids this region."""
        refusal = self.refuse_route(request)
        if refusal is not None:
            if self._jobs is None or not self._is_job(request):
                return refusal
            refusal = self._jobs.refuse_receiving(request, peer_ip)
        else:
            refusal = self._authorization.refuse_sender(request, peer_ip)
        # The next check follows within a second.
        return None if refusal is KEY_AWAITED else refusal

    def reads_whole(self, request: Request) -> bool:
        """Whether the body is JSON, or stored for later; an uploaded file is read as it arrives."""
        if self._jobs is not None and request.route is None and self._is_job(request):
            return self._jobs.reads_whole(request)
        if not request.plain and self._jobs is not None and self._jobs.defers(request):
            return True
        return super().reads_whole(request)

    def can_start_early(self, request: Request) -> bool:
        """Whether a body that is not JSON can be streamed to the engine: the model is known."""
        if request.route is None:
            return self._is_job(request)
        return can_start_early(request)

    def read(self, request: Request, peer_ip: str) -> RequestContext | Refusal:
        """Return the context of a request whose route is set, or its refusal.

        Args:
            peer_ip: the address of the TCP peer.
        """
        policy = self._config.policy
        if policy is None:
            return NO_POLICY
        ledger = self._proxy.recorder.ledger
        if ledger is not None and ledger.refuses:
            return LEDGER_FULL
        options = NO_OPTIONS
        if not request.plain:
            asked = options_of(request)
            if isinstance(asked, Refusal):
                return asked
            options = asked
            if request.header(b"via") is not None and self._loops(request):
                return Refusal(
                    Reason.LOOP_DETECTED, "an endpoint's URL leads back to this agent; correct it in the endpoints file"
                )
        now = self._proxy.clock()
        agent_timeout_s = self._proxy.limits.request_timeout_s
        sender = self._authorization.sender_of(policy, request, peer_ip)
        if isinstance(sender, Refusal):
            return sender
        request.may_wait = request.whole and now < request.waits_until
        context = self._reader.read(policy, request, sender, now, options.timeout_s, agent_timeout_s)
        request.may_wait = False
        if isinstance(context, Refusal):
            return replace(context, tenant=sender.tenant.name)
        if options is not NO_OPTIONS:
            options.apply(context)
        return context

    def lists_models(self, request: Request) -> bool:
        """Whether a request without a route is for the list of models, or for the entry of one."""
        return request.method in READS and is_model_page(self._config.policy, request.path)

    def models(self, request: Request, peer_ip: str) -> tuple[int, list[bytes], bytes] | Refusal:
        """Return status, header lines and body of the list of models, or of the entry of one; or its refusal.

        Args:
            peer_ip: the address of the TCP peer.
        """
        policy = self._config.policy
        is_anthropic = request.path != OLLAMA_PATH and request.header(ANTHROPIC_HEADER) is not None
        if policy is not None and (is_anthropic or request.path == OLLAMA_PATH):
            # The route determines the header of the API key and the format of errors; both follow its API.
            request.route = anthropic_route(policy) if is_anthropic else ollama_route(policy)
        principal = self._authorization.principal_of(request, peer_ip)
        if isinstance(principal, Refusal) or policy is None:
            return principal if isinstance(principal, Refusal) else NO_POLICY
        for_anthropic, endpoints = is_anthropic and request.route is not None, self._endpoints.every()
        page = model_page(policy, principal.models, endpoints, request.path, for_anthropic=for_anthropic)
        if page is None:
            name = request.path.rpartition(b"/")[2].decode("latin-1")
            return model_not_found(name)
        return 200, [JSON], msgspec.json.encode(page)
