"""The three faces of an agent: traffic for clients, peer for other regions' agents, admin for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import probe, route_context
from penstock.reasons import Reason, Refusal
from regional_agent.carry.carrier import Carrier
from regional_agent.carry.errors import error_body, refusal_response
from regional_agent.carry.exchange import Exchange
from regional_agent.carry.listener import ClientConnection
from regional_agent.carry.messages import Request
from regional_agent.classify import INFERENCE_PATHS
from regional_agent.metrics import CONTENT_TYPE
from regional_agent.road import Road, Ticket

if TYPE_CHECKING:
    from regional_agent.knowing import Knowing

JSON = b"content-type: application/json\r\n"
TEXT = b"content-type: text/plain; charset=utf-8\r\n"

PROBE_PATH = probe.PATH.encode()

RESIDENCY_REASONS = frozenset({Reason.RESIDENCY_DENIED, Reason.NO_PERMITTED_REGION, Reason.LOCATION_UNKNOWN})
"""Refusals at a server that mean its origin should never have sent the request."""


class _Service:
    """What the faces have in common: how they say no."""

    def malformed(self, status: int, detail: str) -> tuple[bytes, bytes]:
        """The answer to bytes that are no request, in OpenAI's error shape."""
        return b"application/json", error_body(status, Reason.BAD_REQUEST.value, detail)

    def _refuse(self, connection: ClientConnection, refusal: Refusal) -> None:
        connection.respond(*refusal_response(refusal))

    def _not_found(self, connection: ClientConnection, request: Request) -> None:
        asked = f"{request.method.decode()} {request.path.decode('latin-1')}"
        self._refuse(connection, Refusal(Reason.NOT_FOUND, f"nothing is served at {asked}"))


class TrafficService(_Service):
    """Clients' face: OpenAI's paths, and readiness for whatever steers clients here."""

    def __init__(self, road: Road, carrier: Carrier, knowing: Knowing) -> None:
        self._road, self._carrier, self._knowing = road, carrier, knowing

    def handle(self, request: Request, connection: ClientConnection) -> Exchange | None:
        """Carry an inference request; answer what needs no engine."""
        path = request.path
        if path in INFERENCE_PATHS and request.method == b"POST":
            ticket = self._road.ticket_from_client(request, connection.peer_ip, self._carrier.clock())
            if isinstance(ticket, Ticket):
                return self._carrier.carry(connection, request, ticket)
            self._carrier.metrics.refused(ticket.reason)
            self._refuse(connection, ticket)
        elif path == b"/v1/models" and request.method == b"GET":
            self._models(request, connection)
        elif path in (b"/readyz", b"/livez"):
            answer_health(self._knowing, request, connection)
        else:
            self._not_found(connection, request)
        return None

    def _models(self, request: Request, connection: ClientConnection) -> None:
        refusal = self._road.refuse_unknown(request)
        policy = self._knowing.directives.policy
        if refusal is not None or policy is None:
            self._refuse(connection, refusal or Refusal(Reason.NO_POLICY, "this agent has no policy yet"))
            return
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "penstock"} for name in policy.models]
        connection.respond(200, [JSON], msgspec.json.encode({"object": "list", "data": models}))


class PeerService(_Service):
    """Other regions' agents' face: probes, and requests they forward."""

    def __init__(self, road: Road, carrier: Carrier, knowing: Knowing) -> None:
        self._road, self._carrier, self._knowing = road, carrier, knowing

    def handle(self, request: Request, connection: ClientConnection) -> Exchange | None:
        """Answer a probe, or carry a forwarded request to an engine here and nowhere else."""
        if request.path == PROBE_PATH and request.method == b"GET":
            status, body = self._knowing.probe_answers.answer(request.header(probe.HEADER.encode()))
            connection.respond(status, [TEXT], body)
        elif request.header(route_context.HEADER.encode()) is not None and request.path in INFERENCE_PATHS:
            ticket = self._road.ticket_from_peer(request, self._carrier.clock())
            if isinstance(ticket, Ticket):
                return self._carrier.carry(connection, request, ticket)
            self._carrier.metrics.refused(ticket.reason)
            if ticket.reason in RESIDENCY_REASONS:
                self._carrier.metrics.residency_refused_at_server()
            self._refuse(connection, ticket)
        else:
            self._not_found(connection, request)
        return None


class AdminService(_Service):
    """Operators' face: health, metrics, and what this agent believes."""

    def __init__(self, carrier: Carrier, knowing: Knowing, status: Callable[[], dict[str, Any]]) -> None:
        self._carrier, self._knowing, self._status = carrier, knowing, status

    def handle(self, request: Request, connection: ClientConnection) -> None:
        """Answer at once; nothing here waits for anything, so load elsewhere does not fail a liveness probe."""
        path = request.path
        if request.method not in (b"GET", b"HEAD"):
            self._not_found(connection, request)
        elif path in (b"/readyz", b"/livez"):
            answer_health(self._knowing, request, connection)
        elif path == b"/metrics":
            self._knowing.show(self._carrier.in_flight())
            connection.respond(200, [b"content-type: %b\r\n" % CONTENT_TYPE.encode()], self._carrier.metrics.render())
        elif path == b"/status":
            connection.respond(200, [JSON], msgspec.json.encode(self._status()))
        else:
            self._not_found(connection, request)


def answer_health(knowing: Knowing, request: Request, connection: ClientConnection) -> None:
    """`/livez`: the process turns. `/readyz`: it also has a policy, an engine is ready, and it is not going away."""
    if request.path == b"/livez":
        connection.respond(200, [TEXT], b"ok\n")
        return
    why_not = "going away" if connection.draining else knowing.why_not_ready()
    if why_not is None:
        connection.respond(200, [TEXT], b"ok\n")
    else:
        connection.respond(503, [TEXT], f"not ready: {why_not}\n".encode())
