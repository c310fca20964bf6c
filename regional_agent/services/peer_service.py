"""The service for agents of other regions."""

from __future__ import annotations

from typing import Final

from penstock.routing.reasons import Reason, Refusal
from penstock.wire import identity, object_query, peer_probe, route_context
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.request_handler import Handler
from regional_agent.objects.region_objects import ObjectQueryReader, ObjectQuestion
from regional_agent.peers.probe_responder import ProbeResponder
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.forwarded_request_reader import ForwardedRequestReader
from regional_agent.requests.request_context import RequestContext
from regional_agent.services.service import READS, TEXT, RoutedService, unknown_path

PROBE_PATH: Final = peer_probe.PATH.encode()
IDENTITY_PATH: Final = identity.PATH.encode()
CERTIFICATE_HEADER: Final = identity.HEADER.encode()
OBJECT_PATH: Final = object_query.PATH.encode()
OBJECT_HEADER: Final = object_query.HEADER.encode()
ROUTE_HEADER: Final = route_context.HEADER.encode()

RESIDENCY_REASONS: Final = frozenset({Reason.RESIDENCY_DENIED, Reason.NO_PERMITTED_REGION, Reason.LOCATION_UNKNOWN})
"""Reasons of rejections that indicate a defect of the origin, which must not forward such requests."""


class PeerService(RoutedService):
    """The service for agents of other regions: probes, questions about objects, and forwarded requests."""

    def __init__(
        self,
        reader: ForwardedRequestReader,
        proxy: Proxy,
        config: ActiveConfig,
        responder: ProbeResponder,
        questions: ObjectQueryReader,
    ) -> None:
        """Create the service for agents of other regions.

        Args:
            reader: reads forwarded requests.
            proxy: sends requests to endpoints of this region.
            config: the policy in force, for its routes.
            responder: answers probes.
            questions: reads the questions of other regions about objects.
        """
        super().__init__(proxy, config, reader.objects)
        self._questions = questions
        self._reader = reader
        self._region = proxy.router.region
        self._responder = responder

    def handle(self, request: Request, connection: ClientConnection) -> Handler | None:
        """Respond to a probe, a question or a request for this agent's certificate, or proxy a forwarded request.

        A forwarded request is sent to an endpoint of this region and never forwarded again.
        """
        if request.path == PROBE_PATH and request.method == b"GET":
            certificate = request.header(CERTIFICATE_HEADER)
            status, body = self._responder.answer(request.header(peer_probe.HEADER.encode()), certificate)
            connection.respond(status, [TEXT], body)
        elif request.path == OBJECT_PATH and request.method == b"GET":
            return self._answer_question(request, connection)
        elif request.path == IDENTITY_PATH and request.method in READS:
            connection.respond(200, [TEXT], self._responder.certificate.encode())
        elif request.header(ROUTE_HEADER) is not None:
            refusal = self.refuse_route(request)
            if refusal is not None:
                self._refuse(connection, request, refusal)
                return None
            route = request.route
            if route is not None and (route.object_id or route.previous_object or route.client_object):
                forwarded = self._reader.route_context_of(request)
                owner = "" if isinstance(forwarded, Refusal) else forwarded.tenant
                lookup = self._look_up(request, connection, owner, self._serve)
                if lookup is not None:
                    return lookup
            return self._serve(request, connection)
        else:
            self._refuse_unknown_path(connection, request)
        return None

    def _answer_question(self, request: Request, connection: ClientConnection) -> Handler | None:
        """Respond to a question about an object, which another agent of this region may know."""
        question = self._questions.read(request.header(OBJECT_HEADER))
        if not isinstance(question, ObjectQuestion):
            status, body = question
            connection.respond(status, [TEXT], body)
            return None
        tenant, object_id = question.tenant, question.object_id

        def answer(request: Request, connection: ClientConnection, refusal: Refusal | None) -> None:
            location = self._objects.find(tenant, object_id, self._proxy.clock())
            connection.respond(200, [TEXT], question.answer(location, self._region))

        lookup = self._look_up(request, connection, tenant, answer, object_ids=[object_id])
        if lookup is None:
            answer(request, connection, None)
        return lookup

    def _context(self, request: Request) -> RequestContext | Refusal:
        return self._reader.read(request, self._proxy.clock())

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Reject a request, and count rejections for residency separately: the origin should not have forwarded it."""
        if refusal.reason in RESIDENCY_REASONS:
            self._proxy.metrics.forwarded_residency_refused()
        return super().refuse(refusal, request)

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Reject a request without a valid signed route context before its body is read."""
        if request.header(ROUTE_HEADER) is None:
            return unknown_path(request)
        refusal = self.refuse_route(request)
        if refusal is not None:
            return refusal
        context = self._reader.route_context_of(request)
        return context if isinstance(context, Refusal) else AcceptedHead(context.tenant)

    def can_start_early(self, request: Request) -> bool:
        """Return True: for a body that is not JSON, routing needs only the signed route context."""
        return True
