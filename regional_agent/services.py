"""The three faces of an agent: traffic for clients, peer for other regions' agents, admin for operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.routing.reasons import Reason, Refusal
from penstock.wire import probe, route_context
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints import endpoint_registration
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.http.header_rules import TIMEOUT_HEADER
from regional_agent.http.messages import Request
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.peers.probe_responder import ProbeResponder
from regional_agent.proxy.error_responses import refusal_response
from regional_agent.proxy.exchange import Exchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.routing.admission import Admission
from regional_agent.routing.classify import INFERENCE_PATHS, TUNNEL_PATHS
from regional_agent.routing.explain_service import BadQuestion, ExplainService
from regional_agent.routing.model_name import is_json, named_model
from regional_agent.routing.request_context import RequestContext
from regional_agent.telemetry.agent_metrics import CONTENT_TYPE

JSON: Final = b"content-type: application/json\r\n"
TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n"

PROBE_PATH: Final = probe.PATH.encode()
ROUTE_HEADER: Final = route_context.HEADER.encode()

READS: Final = frozenset({b"GET", b"HEAD"})

RESIDENCY_REASONS: Final = frozenset({Reason.RESIDENCY_DENIED, Reason.NO_PERMITTED_REGION, Reason.LOCATION_UNKNOWN})
"""Refusals at a server that mean its origin should never have sent the request."""


class _Service:
    """What the faces have in common: how they say no."""

    def __init__(self, carrier: Proxy) -> None:
        self._carrier = carrier

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """The answer to what nobody carries, in OpenAI's error shape; None is what never became a request."""
        if request is not None and _is_carried(request):
            self._carrier.record_rejected(request, refusal)
        else:
            self._carrier.metrics.refused(refusal.reason)
        return refusal_response(refusal, self._carrier.rng)

    def refuse_head(self, request: Request) -> Refusal | None:
        """A face that serves no large bodies."""
        return _no_such(request)

    def can_start_early(self, request: Request) -> bool:
        """Never before the body is whole: what little it takes is handled whole."""
        return False

    def _refuse(self, connection: RequestSequence, request: Request, refusal: Refusal) -> None:
        connection.respond(*self.refuse(refusal, request))

    def _loops(self, request: Request) -> bool:
        """Whether the request has been here before (RFC 9110, section 7.6.3)."""
        return any(self._carrier.via in value for value in request.every(b"via"))

    def _not_found(self, connection: RequestSequence, request: Request) -> None:
        self._refuse(connection, request, _no_such(request))


class TrafficService(_Service):
    """Clients' face: OpenAI's paths, and readiness for whatever steers clients here."""

    def __init__(self, admission: Admission, carrier: Proxy, config: ActiveConfig, readiness: Readiness) -> None:
        """Create the service that clients reach.

        Args:
            admission: admits requests.
            carrier: sends admitted requests to their targets.
            config: the policy in force, for the list of models.
            readiness: answers health checks.
        """
        super().__init__(carrier)
        self._admission = admission
        self._config = config
        self._readiness = readiness

    def handle(self, request: Request, connection: RequestSequence) -> Exchange | None:
        """Carry an inference request; answer what needs no engine."""
        path = request.path
        if _is_carried(request):
            context = self._context(request, connection)
            if isinstance(context, RequestContext):
                return self._carrier.handle(connection, request, context)
            self._refuse(connection, request, context)
        elif path == b"/v1/models" and request.method in READS:
            self._models(request, connection)
        elif path in (b"/readyz", b"/livez"):
            answer_health(self._readiness, request, connection, shutting_down=connection.listener.draining)
        else:
            self._not_found(connection, request)
        return None

    def refuse_head(self, request: Request) -> Refusal | None:
        """A large body is not asked for before it is known whose it is, and that it has somewhere to go."""
        return self._admission.refuse_unknown(request) if _is_carried(request) else _no_such(request)

    def can_start_early(self, request: Request) -> bool:
        """A body that is no JSON is passed on as it comes, once its model is known."""
        return not is_json(request) and named_model(request) is not None

    def _context(self, request: Request, connection: RequestSequence) -> RequestContext | Refusal:
        timeout_s = self._carrier.limits.request_timeout_s
        if not request.plain:
            asked_timeout = request.header(TIMEOUT_HEADER)
            if asked_timeout is not None:
                if not asked_timeout.isdigit() or len(asked_timeout) > 9 or int(asked_timeout) == 0:
                    return Refusal(Reason.BAD_REQUEST, f"{TIMEOUT_HEADER.decode()} is not a number of milliseconds")
                timeout_s = min(timeout_s, int(asked_timeout) / 1000)
            if request.header(b"via") is not None and self._loops(request):
                return Refusal(
                    Reason.LOOP_DETECTED, "an endpoint leads back here; correct its URL in the endpoints file"
                )
        now = self._carrier.clock()
        return self._admission.context_from_client(request, connection.peer_ip, now, timeout_s)

    def _models(self, request: Request, connection: RequestSequence) -> None:
        refusal = self._admission.refuse_unknown(request)
        policy = self._config.policy
        if refusal is not None or policy is None:
            self._refuse(connection, request, refusal or Refusal(Reason.NO_POLICY, "this agent has no policy yet"))
            return
        names = dict.fromkeys((*policy.models, *policy.versions))
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "penstock"} for name in names]
        connection.respond(200, [JSON], msgspec.json.encode({"object": "list", "data": models}))


class PeerService(_Service):
    """Other regions' agents' face: probes, and requests they forward."""

    def __init__(self, admission: Admission, carrier: Proxy, responder: ProbeResponder) -> None:
        """Create the service that other regions' agents reach.

        Args:
            admission: verifies the route context of forwarded requests.
            carrier: sends admitted requests to endpoints of this region.
            responder: answers probes.
        """
        super().__init__(carrier)
        self._admission = admission
        self._responder = responder

    def handle(self, request: Request, connection: RequestSequence) -> Exchange | None:
        """Answer a probe, or carry a forwarded request to an engine here and nowhere else."""
        if request.path == PROBE_PATH and request.method == b"GET":
            status, body = self._responder.answer(request.header(probe.HEADER.encode()))
            connection.respond(status, [TEXT], body)
        elif request.header(ROUTE_HEADER) is not None and _is_carried(request):
            context = self._admission.context_from_peer(request, self._carrier.clock())
            if isinstance(context, RequestContext):
                return self._carrier.handle(connection, request, context)
            self._refuse(connection, request, context)
        else:
            self._not_found(connection, request)
        return None

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """As elsewhere; and an origin that should have known is noted."""
        if refusal.reason in RESIDENCY_REASONS:
            self._carrier.metrics.forwarded_residency_refused()
        return super().refuse(refusal, request)

    def refuse_head(self, request: Request) -> Refusal | None:
        """Only what an origin has signed is listened to."""
        if request.header(ROUTE_HEADER) is None or not _is_carried(request):
            return _no_such(request)
        context = self._admission.route_context_of(request)
        return context if isinstance(context, Refusal) else None

    def can_start_early(self, request: Request) -> bool:
        """The origin's signed facts say all there is to know."""
        return True


class AdminService(_Service):
    """Operators' face: health, metrics, and what this agent believes."""

    def __init__(
        self,
        carrier: Proxy,
        readiness: Readiness,
        registrations: Registrations,
        explaining: ExplainService,
        *,
        update_metrics: Callable[[Mapping[str, int]], None],
        status: Callable[[], dict[str, Any]],
    ) -> None:
        """Create the service that operators and scrapers reach.

        Args:
            carrier: the requests in progress.
            readiness: answers health checks.
            registrations: endpoints that register themselves.
            explaining: explains decisions.
            update_metrics: sets the gauges of state before a scrape, given the requests in flight by model.
            status: content of the status page.
        """
        super().__init__(carrier)
        self._readiness = readiness
        self._registrations = registrations
        self._explaining = explaining
        self._update_metrics = update_metrics
        self._status = status

    def handle(self, request: Request, connection: RequestSequence) -> None:
        """Answer at once; nothing here waits for anything, so load elsewhere does not fail a liveness probe."""
        path = request.path
        if path == endpoint_registration.PATH or path.startswith(endpoint_registration.PATH + b"/"):
            self._register(request, connection)
        elif request.method not in READS:
            self._not_found(connection, request)
        elif path in (b"/readyz", b"/livez"):
            answer_health(self._readiness, request, connection, shutting_down=self._readiness.shutting_down)
        elif path == b"/metrics":
            self._update_metrics(self._carrier.in_flight())
            connection.respond(200, [b"content-type: %b\r\n" % CONTENT_TYPE.encode()], self._carrier.metrics.render())
        elif path == b"/explain":
            self._explain(request, connection)
        elif path == b"/status":
            connection.respond(200, [JSON], msgspec.json.encode(self._status()))
        else:
            self._not_found(connection, request)

    def _explain(self, request: Request, connection: RequestSequence) -> None:
        try:
            explanation = self._explaining.explain(request.target, self._carrier.clock())
        except BadQuestion as error:
            connection.respond(400, [JSON], msgspec.json.encode({"problem": str(error)}))
        else:
            connection.respond(200, [JSON], msgspec.json.encode(explanation))

    def _register(self, request: Request, connection: RequestSequence) -> None:
        authorization, body = request.header(b"authorization"), bytes(request.body)
        reply = self._registrations.handle(request.method, request.path, authorization, body)
        connection.respond(reply.status, [JSON], reply.body)


def answer_health(readiness: Readiness, request: Request, connection: RequestSequence, *, shutting_down: bool) -> None:
    """`/livez`: the process turns. `/readyz`: it also has a policy, an engine is ready, and it is not going away."""
    if request.path == b"/livez":
        connection.respond(200, [TEXT], b"ok\n")
        return
    reason = "shutting down" if shutting_down else readiness.not_ready_reason()
    if reason is None:
        connection.respond(200, [TEXT], b"ok\n")
    else:
        connection.respond(503, [TEXT], f"not ready: {reason}\n".encode())


def _is_carried(request: Request) -> bool:
    """Whether it is for an engine: something posted, or a WebSocket."""
    if request.upgrade:
        return request.path in TUNNEL_PATHS
    return request.path in INFERENCE_PATHS and request.method == b"POST"


def _no_such(request: Request) -> Refusal:
    asked = f"{request.method.decode()} {request.path.decode('latin-1')}"
    return Refusal(Reason.NOT_FOUND, f"nothing is served at {asked}")
