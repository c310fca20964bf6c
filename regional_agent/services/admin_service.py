"""The service for operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from adapters.access.callers import Role
from adapters.access.key_access import Denied, KeyAccess
from penstock.routes.route import ErrorFormat
from regional_agent.endpoints import endpoint_registration
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.proxy.error_formats import error_body
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.routing.explain_service import BadExplainQuery, ExplainService
from regional_agent.services.service import HEALTH_PATHS, JSON, READS, Service, health_response
from regional_agent.telemetry.agent_metrics import CONTENT_TYPE

ROLES: Final = {b"/metrics": Role.MONITOR, b"/explain": Role.VIEWER, b"/status": Role.VIEWER}
"""The role that each page of the admin listener requires."""


class AdminPages(NamedTuple):
    """What the pages for operators show."""

    explain: ExplainService
    """Explains routing decisions."""
    update_metrics: Callable[[Mapping[str, int]], None]
    """Sets the gauges of state before a scrape, given the requests in flight by model."""
    status: Callable[[], dict[str, Any]]
    """Returns the content of the status page."""


class AdminService(Service):
    """The service for operators: health, metrics, status, explanations, and registration of endpoints.

    Health checks require no authentication, registration requires a separate token, and all other pages require a role.
    """

    def __init__(
        self,
        proxy: Proxy,
        readiness: Readiness,
        access: KeyAccess,
        registrations: Registrations,
        pages: AdminPages,
    ) -> None:
        """Create the service for operators and scrapers.

        Args:
            proxy: the requests in progress.
            readiness: answers health checks.
            access: authenticates callers.
            registrations: endpoints that register themselves.
            pages: the content of the pages.
        """
        super().__init__(proxy)
        self._readiness = readiness
        self._access = access
        self._registrations = registrations
        self._pages = pages

    def handle(self, request: Request, connection: ClientConnection) -> None:
        """Respond without waiting, so that load on the other services does not fail a liveness probe."""
        path = request.path
        if path == endpoint_registration.PATH or path.startswith(endpoint_registration.PATH + b"/"):
            self._register(request, connection)
        elif request.method not in READS:
            self._refuse_unknown_path(connection, request)
        elif path in HEALTH_PATHS:
            stops = self._readiness.shutting_down
            connection.respond(*health_response(self._readiness, path, shutting_down=stops))
        elif path not in ROLES:
            self._refuse_unknown_path(connection, request)
        elif not self._permits(ROLES[path], request, connection):
            return
        elif path == b"/metrics":
            self._pages.update_metrics(self._proxy.in_flight())
            connection.respond(200, [b"content-type: %b\r\n" % CONTENT_TYPE.encode()], self._proxy.metrics.render())
        elif path == b"/explain":
            self._explain(request, connection)
        else:
            connection.respond(200, [JSON], msgspec.json.encode(self._pages.status()))

    def _permits(self, role: Role, request: Request, connection: ClientConnection) -> bool:
        """Whether the caller has a role; if not, the request is rejected."""
        try:
            authorization, certificate = request.header(b"authorization"), connection.transport.client_certificate()
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

    def _explain(self, request: Request, connection: ClientConnection) -> None:
        try:
            explanation = self._pages.explain.explain(request.target, self._proxy.clock())
        except BadExplainQuery as error:
            connection.respond(400, [JSON], msgspec.json.encode({"problem": str(error)}))
        else:
            connection.respond(200, [JSON], msgspec.json.encode(explanation))

    def _register(self, request: Request, connection: ClientConnection) -> None:
        authorization, body = request.header(b"authorization"), bytes(request.body)
        reply = self._registrations.handle(request.method, request.path, authorization, body)
        connection.respond(reply.status, [JSON], reply.body)
