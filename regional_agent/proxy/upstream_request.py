"""Writes the request to an engine or a peer: the headers passed on from the client, and the headers of this hop."""

from __future__ import annotations

from typing import Final

from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request, request_lines_to_upstream
from regional_agent.requests.request_context import RequestContext
from regional_agent.websocket.websocket_offer import handshake_lines

_HEAD: Final = b"%b %b HTTP/1.1\r\n%bx-request-id: %b\r\ntraceparent: %b\r\nx-request-timeout-ms: %d\r\nvia: %b\r\n%b"
_COUNTED: Final = _HEAD + b"content-length: %d\r\n\r\n%b"
_IDENTITY: Final = b"identity"
_CHUNKED: Final = _HEAD + b"transfer-encoding: chunked\r\n\r\n"
_UPGRADING: Final = _HEAD + b"connection: upgrade\r\nupgrade: %b\r\n%b\r\n"


def build_upstream_request(
    request: Request, context: RequestContext, lines: bytes, host_line: bytes, via: bytes, now: float
) -> bytes:
    """Request line, headers, and the body if it is complete.

    Args:
        request: as the target receives it (`Attempt.request_for_target`).
        lines: the header lines of the client, and those for this target only.
        host_line: the Host header for the target.
        via: this agent's entry in the Via header (RFC 9110, section 7.6.3). Responses have none: they name the region.
        now: by the agent's clock (s), to compute the remaining timeout.
    """
    left_ms = int((context.deadline_at - now) * 1000)
    head = (
        request.method,
        request.target,
        host_line,
        context.request_id.encode(),
        context.traceparent.encode(),
        left_ms if left_ms > 1 else 1,
        via if request.plain else b", ".join([*request.every(b"via"), via]),
        lines,
    )
    if request.length is None:
        return _CHUNKED % head
    if request.upgrade:
        return _UPGRADING % (*head, request.upgrade, handshake_lines(request))
    return _COUNTED % (*head, request.length, request.body if request.whole else b"")


def ask_for_identity(request: Request) -> None:
    """Ask for a response without content coding, because the agent changes the stream.

    A header that is absent stays absent: servers then send no coding.
    """
    accepted = request.header(b"accept-encoding")
    if accepted is not None and accepted != _IDENTITY:
        request.headers = [
            (name, _IDENTITY if name == b"accept-encoding" else value) for name, value in request.headers
        ]
        request.upstream_lines = b""
        request.index()


def client_lines(request: Request, context: RequestContext, client: ClientConnection) -> bytes:
    """The header lines that come from the client."""
    if request.plain:
        return request_lines_to_upstream(request, client.listener.to_upstream, client.scheme, request.authority)
    given = request.header(b"traceparent") or b""
    same_trace = given[3:35] == context.traceparent[3:35].encode()
    return request_lines_to_upstream(
        request, client.listener.to_upstream, *_scheme_and_host(request, context, client), keep_trace_state=same_trace
    )


def _scheme_and_host(request: Request, context: RequestContext, client: ClientConnection) -> tuple[bytes, bytes]:
    """Scheme and host that the client used. X-Forwarded headers count only from trusted proxies and peer agents."""
    proto, host = request.header(b"x-forwarded-proto"), request.header(b"x-forwarded-host")
    if (proto is None and host is None) or not (context.route_context is not None or client.trusted):
        return client.scheme, request.authority
    return (proto if proto in (b"http", b"https") else client.scheme), host or request.authority
