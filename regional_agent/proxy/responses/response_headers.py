"""The header lines that this agent adds to responses, and the head of a response that accepts an upgrade."""

from __future__ import annotations

from typing import Final

from penstock.routes.route import ErrorFormat
from regional_agent.http.headers.header_rules import Header, response_lines_to_client
from regional_agent.http.headers.link_headers import without_server_address
from regional_agent.http.messages import Request, response_head
from regional_agent.proxy.error_responses import error_format_of
from regional_agent.proxy.rate_limit_headers import rate_limit_lines
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.websocket.websocket_offer import selected_line

MAX_CACHED_ENDPOINTS: Final = 4096

_ANTHROPIC: Final = ErrorFormat.ANTHROPIC
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class ResponseHeaders:
    """Writes the request's ID, the region and endpoint that serve it, a substituted model, and the rest of budgets."""

    def __init__(self, region: str) -> None:
        """Write the headers of an agent of `region`."""
        self._region = region
        self._by_endpoint: dict[str, bytes] = {}

    def lines(self, context: RequestContext, endpoint: str) -> bytes:
        """The header lines of one response; `endpoint` is empty for a peer's response, which has its own lines."""
        request_id = context.request_id.encode()
        lines = b"x-request-id: " + request_id + b"\r\n"
        route = context.request.route
        if route is not None and route.errors is _ANTHROPIC:
            lines += b"request-id: " + request_id + b"\r\n"
        if endpoint:
            lines += self._by_endpoint.get(endpoint) or self._endpoint_lines(endpoint)
        if context.model != context.asked_for:
            lines += b"x-penstock-model: %b\r\n" % context.model.encode()
        if context.reservation is not None:
            lines += rate_limit_lines(context.reservation.budgets, error_format_of(context.request))
        return lines

    def _endpoint_lines(self, endpoint: str) -> bytes:
        if len(self._by_endpoint) >= MAX_CACHED_ENDPOINTS:
            self._by_endpoint.clear()
        lines = self._by_endpoint[endpoint] = b"x-penstock-region: %b\r\nx-penstock-endpoint: %b\r\n" % (
            self._region.encode(),
            endpoint.encode(),
        )
        return lines


def upgrade_response_head(request: Request, headers: list[Header], lines: bytes, attempt: Attempt) -> bytes:
    """The head of the 101 response that accepts an upgrade.

    Args:
        request: the client's request.
        headers: the headers of the engine's or peer's response.
        lines: header lines of this agent.
        attempt: the attempt that the response is for.
    """
    upgrade = b"connection: upgrade\r\nupgrade: %b\r\n" % request.upgrade
    headers = without_server_address(headers, attempt.address.host, attempt.base_path)
    passed = response_lines_to_client(headers, dict(headers), from_peer=attempt.from_peer)
    return response_head(101, [upgrade, *passed, selected_line(request, headers), lines])
