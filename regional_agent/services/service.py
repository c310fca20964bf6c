"""The common behaviour of the services: rejections, routes, and responses to health checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routes.route import ErrorFormat
from penstock.routes.route_query import refusal_of_miss
from penstock.routes.route_table import RouteMatch
from penstock.routing.reasons import Reason, Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.body_limits import HeadPostponed
from regional_agent.http.client_connection import Application, ClientConnection
from regional_agent.http.messages import AcceptedHead, Request, valid_request_id
from regional_agent.http.request_handler import Handler
from regional_agent.http.waiting_request import Serve, WaitingRequest, serve_after
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.proxy.error_responses import refusal_response
from regional_agent.proxy.exchange_start import start_exchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.requests.authorization import NO_POLICY, Sender
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.model_name import reads_whole
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.route_fields import objects_of

JSON: Final = b"content-type: application/json\r\n"
TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n"

READS: Final = frozenset({b"GET", b"HEAD"})
HEALTH_PATHS: Final = (b"/readyz", b"/livez")

LEDGER_FULL: Final = Refusal(
    Reason.LEDGER_FULL, "the ledger of this agent has no room for the record of the request", retry_after_s=MIN_RETRY_S
)


class Service(Application):
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
        if self.refuse_route(request) in (None, NO_POLICY):
            self._proxy.recorder.record_rejected(request, refusal, request_id)
        else:
            self._proxy.metrics.refused(refusal.reason)
        return refusal_response(refusal, self._proxy.rng, self.error_format(request), request_id)

    def error_format(self, request: Request) -> ErrorFormat:
        """Return the format of error responses to a request. By default OpenAI's."""
        return ErrorFormat.OPENAI

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | HeadPostponed | Refusal:
        """Accept a request before its body is read, or reject it. By default every path is unknown."""
        return unknown_path(request)

    def release_head(self, head: AcceptedHead) -> None:
        """Release the quota that an accepted head still holds. By default a head holds none."""

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Return the refusal of a request whose body is arriving; None, the default, to continue reading the body."""
        return None

    def reads_whole(self, request: Request) -> bool:
        """Whether a request is handled only when its body is complete. By default True."""
        return True

    def can_start_early(self, request: Request) -> bool:
        """Whether another request may be handled before its body is complete. By default False."""
        return False

    def refuse_route(self, request: Request) -> Refusal | None:
        """Set the route of a request; returns a refusal if no route matches. By default no route matches."""
        return unknown_path(request)

    def _refuse(self, connection: ClientConnection, request: Request, refusal: Refusal) -> None:
        connection.respond(*self.refuse(refusal, request))

    def _loops(self, request: Request) -> bool:
        """Whether this agent has already forwarded the request (Via, RFC 9110, section 7.6.3)."""
        return any(self._proxy.via in value for value in request.every(b"via"))

    def _refuse_unknown_path(self, connection: ClientConnection, request: Request) -> None:
        self._refuse(connection, request, unknown_path(request))


class RoutedService(Service):
    """A service that proxies the requests of routes."""

    def __init__(self, proxy: Proxy, config: ActiveConfig, objects: KnownObjects) -> None:
        super().__init__(proxy)
        self._config = config
        self._objects = objects

    def handle(self, request: Request, connection: ClientConnection) -> Handler | None:
        """Find the route of a request, and handle it."""
        return self._handle(request, connection, self.refuse_route(request))

    def _handle(self, request: Request, connection: ClientConnection, refusal: Refusal | None) -> Handler | None:
        """Handle a request. `refusal` is set if it has no route. By default, proxy it."""
        return self._serve(request, connection, refusal)

    def reads_whole(self, request: Request) -> bool:
        """Whether the body is JSON."""
        return reads_whole(request)

    def _look_up(
        self,
        request: Request,
        connection: ClientConnection,
        tenant: str,
        serve: Serve,
        regions: Callable[[], Collection[str]] = tuple,
        object_ids: Iterable[str] = (),
    ) -> WaitingRequest | None:
        """Hold a request until its objects that only another agent may have recorded have been looked up: in the
        region's Redis, and in other regions. None if there are none.

        Args:
            tenant: the owner of the objects; empty for none.
            serve: handles the request afterwards, whether or not the objects were found, or refuses it.
            regions: returns the other regions that may be asked.
            object_ids: the objects, if the request is not one that names them.
        """
        now = self._proxy.clock()
        unknown = self._objects.unknown(tenant, object_ids or objects_of(request), now) if tenant else []
        elsewhere = regions() if unknown else ()
        if not unknown or not self._objects.can_seek(elsewhere):
            return None
        return serve_after(self._objects.seek(tenant, unknown, now, elsewhere), request, connection, serve)

    def _context(self, request: Request) -> RequestContext | Refusal:
        """Return the context of a request, or its refusal."""
        raise NotImplementedError

    def _read_as(self, sender: Sender, request: Request, reader: ClientRequestReader) -> RequestContext | Refusal:
        """Return the context of a request that the agent sends for a sender that was authenticated before."""
        policy, ledger = self._config.policy, self._proxy.recorder.ledger
        if policy is None:
            return NO_POLICY
        if ledger is not None and ledger.refuses:
            return LEDGER_FULL
        context = reader.read(policy, request, sender, self._proxy.clock(), inf, self._proxy.limits.request_timeout_s)
        if isinstance(context, RequestContext):
            context.has_credential = False
        return context

    def _serve(self, request: Request, connection: ClientConnection, refusal: Refusal | None = None) -> Handler | None:
        """Proxy a request whose objects have been looked up; `refusal` if it is refused."""
        if refusal is None:
            context = self._context(request)
            if isinstance(context, RequestContext):
                return start_exchange(self._proxy, connection, context)
            refusal = context
        self._refuse(connection, request, refusal)
        return None

    def refuse_route(self, request: Request) -> Refusal | None:
        """Set the route of a request under the policy in force; returns a refusal if no route matches.

        A route that was set before is kept if the policy in force offers a route of that name.
        """
        policy = self._config.policy
        if policy is None:
            return NO_POLICY
        table = policy.route_table
        if request.route is not None and table.has(request.route):
            return None
        found = table.find(request.upgrade or request.method, request.path)
        if isinstance(found, RouteMatch):
            request.route, request.reader, request.path_parameters = found.route, found.reader, found.parameters
            return None
        request.route = None
        missed = refusal_of_miss(found, request.method.decode(), request.path.decode("latin-1"))
        return self._without_route(request, missed)

    def _without_route(self, request: Request, refusal: Refusal) -> Refusal:
        """Return the refusal of a request that no route matches. By default the one of the table of routes."""
        return refusal

    def error_format(self, request: Request) -> ErrorFormat:
        """Return the format of the request's route, or of a route for its path and another method; else OpenAI's."""
        policy = self._config.policy
        route = request.route
        if route is None and policy is not None:
            route = policy.route_table.find(request.upgrade or request.method, request.path).route
        return ErrorFormat.OPENAI if route is None else route.errors


def health_response(readiness: Readiness, path: bytes, *, shutting_down: bool) -> tuple[int, list[bytes], bytes]:
    """Return the response to `/livez` (200 while the event loop runs) or `/readyz` (200 if clients can be served).

    An agent is ready if a policy is in force, the agent is not shutting down, and one of its endpoints is ready. An
    agent without endpoints is ready while another region serves. `x-penstock-weight` is `Readiness.weight`.
    """
    if path == b"/livez":
        return 200, [TEXT], b"ok\n"
    reason = "shutting down" if shutting_down else readiness.not_ready_reason()
    if reason is None:
        return 200, [TEXT, b"x-penstock-weight: %.2f\r\n" % readiness.weight()], b"ok\n"
    return 503, [TEXT], f"not ready: {reason}\n".encode()


def unknown_path(request: Request) -> Refusal:
    target = f"{request.method.decode()} {request.path.decode('latin-1')}"
    return Refusal(Reason.NOT_FOUND, f"nothing is served at {target}")
