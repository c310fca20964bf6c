"""The HTTP services of an agent: traffic for clients, peer for agents of other regions, admin for operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

import msgspec

from adapters.access.callers import Role
from adapters.access.key_access import Denied, KeyAccess
from penstock.admission.queueing import MIN_RETRY_S
from penstock.routes.route import ErrorFormat
from penstock.routes.route_query import refusal_of_miss
from penstock.routes.route_table import RouteMatch
from penstock.routing.reasons import Reason, Refusal
from penstock.wire import identity, probe, route_context
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints import endpoint_registration
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.http.header_rules import TIMEOUT_HEADER
from regional_agent.http.messages import AdmittedHead, Request
from regional_agent.http.request_sequence import Handler, RequestSequence
from regional_agent.objects.object_lookup import ObjectLookup, Serve, look_up_objects
from regional_agent.peers.probe_responder import ProbeResponder
from regional_agent.proxy.error_formats import error_body
from regional_agent.proxy.error_responses import refusal_response
from regional_agent.proxy.exchange import Exchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.routing.admission import Admission, valid_request_id
from regional_agent.routing.explain_service import BadExplainQuery, ExplainService
from regional_agent.routing.model_list import ANTHROPIC_HEADER, anthropic_route, is_model_page, model_page
from regional_agent.routing.model_name import can_start_early
from regional_agent.routing.request_context import RequestContext
from regional_agent.telemetry.agent_metrics import CONTENT_TYPE

JSON: Final = b"content-type: application/json\r\n"
TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n"

PROBE_PATH: Final = probe.PATH.encode()
IDENTITY_PATH: Final = identity.PATH.encode()
CERTIFICATE_HEADER: Final = identity.HEADER.encode()
ROUTE_HEADER: Final = route_context.HEADER.encode()

ROLES: Final = {b"/metrics": Role.MONITOR, b"/explain": Role.VIEWER, b"/status": Role.VIEWER}
"""The role that each page of the admin listener requires."""

READS: Final = frozenset({b"GET", b"HEAD"})

RESIDENCY_REASONS: Final = frozenset({Reason.RESIDENCY_DENIED, Reason.NO_PERMITTED_REGION, Reason.LOCATION_UNKNOWN})
"""Rejections by a serving region that show a defect of the origin: it must not forward such requests."""


class _Service:
    """Behaviour common to the services: rejections."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Count a rejected request and return its response in the error format of its route.

        Args:
            request: None if the bytes received were not a valid request.
        """
        if request is None:
            self._proxy.metrics.refused(refusal.reason)
            return refusal_response(refusal, self._proxy.rng)
        new_id = self._proxy.rng.randbytes(16).hex()
        request_id = valid_request_id(request.header(b"x-request-id") or b"", new_id)
        if self.refuse_route(request) in (None, _NO_POLICY):
            self._proxy.record_rejected(request, refusal, request_id)
        else:
            self._proxy.metrics.refused(refusal.reason)
        return refusal_response(refusal, self._proxy.rng, self.error_format(request), request_id)

    def error_format(self, request: Request) -> ErrorFormat:
        """The format of error responses to a request. By default OpenAI's."""
        return ErrorFormat.OPENAI

    def admit_head(self, request: Request) -> AdmittedHead | Refusal:
        """Admit a request before its body is read, or reject it. By default every path is unknown."""
        return _unknown_path(request)

    def release_head(self, admitted: AdmittedHead) -> None:
        """Release what an admitted head still holds. By default that is nothing."""

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Why to reject a request while its body arrives; None to read on. By default only heads are checked."""
        return None

    def can_start_early(self, request: Request) -> bool:
        """Whether a request may be handled before its body is complete. By default it may not."""
        return False

    def refuse_route(self, request: Request) -> Refusal | None:
        """Set the route of a request; returns a refusal if the request has none. By default no request has one."""
        return _unknown_path(request)

    def _refuse(self, connection: RequestSequence, request: Request, refusal: Refusal) -> None:
        connection.respond(*self.refuse(refusal, request))

    def _loops(self, request: Request) -> bool:
        """Whether this agent has already forwarded the request (Via, RFC 9110, section 7.6.3)."""
        return any(self._proxy.via in value for value in request.every(b"via"))

    def _refuse_unknown_path(self, connection: RequestSequence, request: Request) -> None:
        self._refuse(connection, request, _unknown_path(request))


class _RoutedService(_Service):
    """A service that proxies the requests of routes."""

    def __init__(self, admission: Admission, proxy: Proxy, config: ActiveConfig) -> None:
        super().__init__(proxy)
        self._admission = admission
        self._config = config

    def _look_up(self, request: Request, connection: RequestSequence, tenant: str, serve: Serve) -> ObjectLookup | None:
        """Look up the objects that a request of `tenant` names, unless they are known; None where nothing is sought."""
        if not tenant:
            return None
        return look_up_objects(self._admission.objects, request, connection, tenant, serve, self._proxy.clock())

    def refuse_route(self, request: Request) -> Refusal | None:
        """Set the route of a request under the policy in force; returns a refusal if the request has none.

        A request keeps the route that it has, unless the policy in force does not offer a route of that name.
        """
        policy = self._config.policy
        if policy is None:
            return _NO_POLICY
        table = policy.route_table
        if request.route is not None and table.has(request.route):
            return None
        found = table.find(request.upgrade or request.method, request.path)
        if isinstance(found, RouteMatch):
            request.route, request.reader, request.path_parameters = found.route, found.reader, found.parameters
            return None
        request.route = None
        return refusal_of_miss(found, request.method.decode(), request.path.decode("latin-1"))

    def error_format(self, request: Request) -> ErrorFormat:
        """The format of the request's route, or of a route of the same path that has another method."""
        policy = self._config.policy
        route = request.route
        if route is None and policy is not None:
            route = policy.route_table.find(request.upgrade or request.method, request.path).route
        return ErrorFormat.OPENAI if route is None else route.errors


class TrafficService(_RoutedService):
    """The service for clients: the paths of OpenAI's API, and health checks for load balancers."""

    def __init__(
        self,
        admission: Admission,
        proxy: Proxy,
        config: ActiveConfig,
        readiness: Readiness,
        endpoints: EndpointSet,
    ) -> None:
        """Create the service that clients reach.

        Args:
            admission: admits requests.
            proxy: sends admitted requests to their targets.
            config: the policy in force, for the list of models.
            readiness: answers health checks.
            endpoints: those of this region, whose adapters are listed.
        """
        super().__init__(admission, proxy, config)
        self._readiness = readiness
        self._endpoints = endpoints

    def handle(self, request: Request, connection: RequestSequence) -> Handler | None:
        """Proxy an inference request; answer a list of models or a health check directly."""
        refusal = self.refuse_route(request)
        if refusal is None:
            route = request.route
            if route is not None and (route.object_id or route.previous_object or route.client_object):
                tenant = self._admission.tenant_of(request)
                owner = "" if isinstance(tenant, Refusal) else tenant.name
                lookup = self._look_up(request, connection, owner, self._serve)
                if lookup is not None:
                    return lookup
        return self._serve(request, connection, refusal)

    def _serve(self, request: Request, connection: RequestSequence, refusal: Refusal | None = None) -> Exchange | None:
        """Handle a request whose objects have been looked up; `refusal` if it has no route."""
        if refusal is None:
            context = self._context(request, connection)
            if isinstance(context, RequestContext):
                return self._proxy.handle(connection, request, context)
            refusal = context
        path = request.path
        if request.route is not None:
            self._refuse(connection, request, refusal)
        elif is_model_page(path) and request.method in READS:
            self._models(request, connection)
        elif path in (b"/readyz", b"/livez"):
            answer_health(self._readiness, request, connection, shutting_down=connection.listener.draining)
        else:
            self._refuse(connection, request, refusal)
        return None

    def admit_head(self, request: Request) -> AdmittedHead | Refusal:
        """Reject an unknown tenant, or one at its quota, before a large body is read."""
        refusal = self.refuse_route(request)
        if refusal is not None:
            return refusal
        return self._admission.admit_head(request, self._proxy.clock())

    def release_head(self, admitted: AdmittedHead) -> None:
        """Release the quota of a request that ended before it had a context."""
        self._admission.release_head(admitted)

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Reject a request whose key was revoked, or which residency keeps out of this region."""
        return self.refuse_route(request) or self._admission.refuse_sender(request, peer_ip)

    def can_start_early(self, request: Request) -> bool:
        """A body that is not JSON is streamed to the engine once the model is known."""
        return can_start_early(request)

    def _context(self, request: Request, connection: RequestSequence) -> RequestContext | Refusal:
        client_timeout_s = inf
        if not request.plain:
            timeout_ms = request.header(TIMEOUT_HEADER)
            if timeout_ms is not None:
                if not timeout_ms.isdigit() or len(timeout_ms) > 9 or int(timeout_ms) == 0:
                    return Refusal(Reason.BAD_REQUEST, f"{TIMEOUT_HEADER.decode()} is not a number of milliseconds")
                client_timeout_s = int(timeout_ms) / 1000
            if request.header(b"via") is not None and self._loops(request):
                return Refusal(
                    Reason.LOOP_DETECTED, "an endpoint's URL leads back to this agent; correct it in the endpoints file"
                )
        now = self._proxy.clock()
        agent_timeout_s = self._proxy.limits.request_timeout_s
        return self._admission.context_from_client(request, connection.peer_ip, now, client_timeout_s, agent_timeout_s)

    def _models(self, request: Request, connection: RequestSequence) -> None:
        policy = self._config.policy
        if policy is not None and request.header(ANTHROPIC_HEADER) is not None:
            # The place of the key and the format of errors are those of Anthropic's API.
            request.route = anthropic_route(policy)
        tenant = self._admission.tenant_of(request)
        if isinstance(tenant, Refusal) or policy is None:
            refusal = tenant if isinstance(tenant, Refusal) else Refusal(Reason.NO_POLICY, "no policy accepted yet")
            self._refuse(connection, request, refusal)
            return
        page = model_page(policy, self._endpoints.every(), request.path, for_anthropic=request.route is not None)
        if page is None:
            name = request.path.rpartition(b"/")[2].decode("latin-1")
            self._refuse(
                connection, request, Refusal(Reason.MODEL_NOT_FOUND, f"no model named {name!r} is served here")
            )
            return
        connection.respond(200, [JSON], msgspec.json.encode(page))


class PeerService(_RoutedService):
    """The service for agents of other regions: probes and forwarded requests."""

    def __init__(self, admission: Admission, proxy: Proxy, config: ActiveConfig, responder: ProbeResponder) -> None:
        """Create the service that other regions' agents reach.

        Args:
            admission: verifies the route context of forwarded requests.
            proxy: sends admitted requests to endpoints of this region.
            config: the policy in force, for its routes.
            responder: answers probes.
        """
        super().__init__(admission, proxy, config)
        self._responder = responder

    def handle(self, request: Request, connection: RequestSequence) -> Handler | None:
        """Answer a probe, or proxy a forwarded request to an endpoint of this region; it is not forwarded again."""
        if request.path == PROBE_PATH and request.method == b"GET":
            certificate = request.header(CERTIFICATE_HEADER)
            status, body = self._responder.answer(request.header(probe.HEADER.encode()), certificate)
            connection.respond(status, [TEXT], body)
        elif request.path == IDENTITY_PATH and request.method in READS:
            connection.respond(200, [TEXT], self._responder.certificate.encode())
        elif request.header(ROUTE_HEADER) is not None:
            refusal = self.refuse_route(request)
            if refusal is not None:
                self._refuse(connection, request, refusal)
                return None
            route = request.route
            if route is not None and (route.object_id or route.previous_object or route.client_object):
                forwarded = self._admission.route_context_of(request)
                owner = "" if isinstance(forwarded, Refusal) else forwarded.tenant
                lookup = self._look_up(request, connection, owner, self._serve)
                if lookup is not None:
                    return lookup
            return self._serve(request, connection)
        else:
            self._refuse_unknown_path(connection, request)
        return None

    def _serve(self, request: Request, connection: RequestSequence) -> Exchange | None:
        """Proxy a forwarded request whose objects have been looked up."""
        context = self._admission.context_from_peer(request, self._proxy.clock())
        if isinstance(context, RequestContext):
            return self._proxy.handle(connection, request, context)
        self._refuse(connection, request, context)
        return None

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Count rejections for residency, too: the origin should not have forwarded such a request."""
        if refusal.reason in RESIDENCY_REASONS:
            self._proxy.metrics.forwarded_residency_refused()
        return super().refuse(refusal, request)

    def admit_head(self, request: Request) -> AdmittedHead | Refusal:
        """Reject a request without a valid signed route context before its body is read."""
        if request.header(ROUTE_HEADER) is None:
            return _unknown_path(request)
        refusal = self.refuse_route(request)
        if refusal is not None:
            return refusal
        context = self._admission.route_context_of(request)
        return context if isinstance(context, Refusal) else AdmittedHead(context.tenant)

    def can_start_early(self, request: Request) -> bool:
        """The signed route context contains all that routing needs, so the body is streamed."""
        return True


class AdminService(_Service):
    """The service for operators: health, metrics, status, explanations, and registration of endpoints.

    Health requires no caller, registration a token of its own, everything else a role.
    """

    def __init__(
        self,
        proxy: Proxy,
        readiness: Readiness,
        access: KeyAccess,
        registrations: Registrations,
        explain_service: ExplainService,
        *,
        update_metrics: Callable[[Mapping[str, int]], None],
        status: Callable[[], dict[str, Any]],
    ) -> None:
        """Create the service that operators and scrapers reach.

        Args:
            proxy: the requests in progress.
            readiness: answers health checks.
            access: authenticates callers.
            registrations: endpoints that register themselves.
            explain_service: explains routing decisions.
            update_metrics: sets the gauges of state before a scrape, given the requests in flight by model.
            status: content of the status page.
        """
        super().__init__(proxy)
        self._readiness = readiness
        self._access = access
        self._registrations = registrations
        self._explain_service = explain_service
        self._update_metrics = update_metrics
        self._status = status

    def handle(self, request: Request, connection: RequestSequence) -> None:
        """Answer without waiting, so that load on the other services does not fail a liveness probe."""
        path = request.path
        if path == endpoint_registration.PATH or path.startswith(endpoint_registration.PATH + b"/"):
            self._register(request, connection)
        elif request.method not in READS:
            self._refuse_unknown_path(connection, request)
        elif path in (b"/readyz", b"/livez"):
            answer_health(self._readiness, request, connection, shutting_down=self._readiness.shutting_down)
        elif path not in ROLES:
            self._refuse_unknown_path(connection, request)
        elif not self._permits(ROLES[path], request, connection):
            return
        elif path == b"/metrics":
            self._update_metrics(self._proxy.in_flight())
            connection.respond(200, [b"content-type: %b\r\n" % CONTENT_TYPE.encode()], self._proxy.metrics.render())
        elif path == b"/explain":
            self._explain(request, connection)
        else:
            connection.respond(200, [JSON], msgspec.json.encode(self._status()))

    def _permits(self, role: Role, request: Request, connection: RequestSequence) -> bool:
        """Whether the caller has a role; if not, the request is answered."""
        try:
            authorization, certificate = request.header(b"authorization"), connection.client_certificate()
            self._access.require(role, authorization, certificate, connection.peer_ip)
        except Denied as denied:
            headers = [JSON]
            if denied.status == 401:
                headers.append(b"www-authenticate: Bearer\r\n")
            if denied.retry_after_s:
                headers.append(b"retry-after: %d\r\n" % denied.retry_after_s)
            body = error_body(ErrorFormat.OPENAI, denied.status, denied.code, str(denied))
            connection.respond(denied.status, headers, body)
            return False
        return True

    def _explain(self, request: Request, connection: RequestSequence) -> None:
        try:
            explanation = self._explain_service.explain(request.target, self._proxy.clock())
        except BadExplainQuery as error:
            connection.respond(400, [JSON], msgspec.json.encode({"problem": str(error)}))
        else:
            connection.respond(200, [JSON], msgspec.json.encode(explanation))

    def _register(self, request: Request, connection: RequestSequence) -> None:
        authorization, body = request.header(b"authorization"), bytes(request.body)
        reply = self._registrations.handle(request.method, request.path, authorization, body)
        connection.respond(reply.status, [JSON], reply.body)


def answer_health(readiness: Readiness, request: Request, connection: RequestSequence, *, shutting_down: bool) -> None:
    """Answer `/livez` (200 while the event loop runs) or `/readyz` (200 if the agent can serve clients).

    Ready means that a policy is in force, an endpoint is ready (or there is none, and another region serves), and the
    agent is not shutting down.
    """
    if request.path == b"/livez":
        connection.respond(200, [TEXT], b"ok\n")
        return
    reason = "shutting down" if shutting_down else readiness.not_ready_reason()
    if reason is None:
        connection.respond(200, [TEXT], b"ok\n")
    else:
        connection.respond(503, [TEXT], f"not ready: {reason}\n".encode())


_NO_POLICY: Final = Refusal(Reason.NO_POLICY, "this agent has no policy yet", retry_after_s=MIN_RETRY_S)


def _unknown_path(request: Request) -> Refusal:
    target = f"{request.method.decode()} {request.path.decode('latin-1')}"
    return Refusal(Reason.NOT_FOUND, f"nothing is served at {target}")
