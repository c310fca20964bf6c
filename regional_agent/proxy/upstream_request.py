"""The head of a request as its target gets it: what of the client's passes, and what is said anew at this hop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from regional_agent.http.messages import Request, request_lines_to_upstream
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.request_context import RequestContext

if TYPE_CHECKING:
    from regional_agent.upstream.address import Address

MAX_HOSTS_KEPT: Final = 4096

_BEGINNING: Final = (
    b"%b %b HTTP/1.1\r\n%bx-request-id: %b\r\ntraceparent: %b\r\nx-request-timeout-ms: %d\r\nvia: %b\r\n%b"
)
_COUNTED: Final = _BEGINNING + b"content-length: %d\r\n\r\n%b"
_CHUNKED: Final = _BEGINNING + b"transfer-encoding: chunked\r\n\r\n"
_UPGRADING: Final = _BEGINNING + b"connection: upgrade\r\nupgrade: %b\r\n\r\n"

_host_lines: dict[Address, bytes] = {}


def build_upstream_request(
    request: Request, context: RequestContext, attempt: Attempt, client: RequestSequence, via: bytes, now: float
) -> bytes:
    """Request line, headers, and a body that is whole, ready to write.

    Args:
        via: this agent's pseudonym (RFC 9110, section 7.6.3). Answers get none: they say who served them.
        now: for what is left of the deadline.
    """
    passing = request.upstream_lines or _passing(request, context, client)
    if attempt.route_lines:
        passing += attempt.route_lines
    left_ms = int((context.deadline_at - now) * 1000)
    beginning = (
        request.method,
        request.target,
        _host_lines.get(attempt.address) or _host_line(attempt.address),
        context.request_id.encode(),
        context.traceparent.encode(),
        left_ms if left_ms > 1 else 1,
        via if request.plain else b", ".join([*request.every(b"via"), via]),
        passing,
    )
    if request.length is None:
        return _CHUNKED % beginning
    if request.upgrade:
        return _UPGRADING % (*beginning, request.upgrade)
    return _COUNTED % (*beginning, request.length, request.body if request.whole else b"")


def _passing(request: Request, context: RequestContext, client: RequestSequence) -> bytes:
    """What the target hears of the client, and of its headers."""
    if request.plain:
        return request_lines_to_upstream(request, client.listener.to_upstream, client.scheme, request.authority)
    continued = request.header(b"traceparent") == context.traceparent.encode()
    return request_lines_to_upstream(
        request, client.listener.to_upstream, *_as_asked(request, context, client), keep_trace_state=continued
    )


def _as_asked(request: Request, context: RequestContext, client: RequestSequence) -> tuple[bytes, bytes]:
    """Scheme and host that the client used; a proxy of ours, or a peer with a signed context, is believed about it."""
    proto, host = request.header(b"x-forwarded-proto"), request.header(b"x-forwarded-host")
    if (proto is None and host is None) or not (context.route_context is not None or client.trusted):
        return client.scheme, request.authority
    return (proto if proto in (b"http", b"https") else client.scheme), host or request.authority


def _host_line(address: Address) -> bytes:
    if len(_host_lines) >= MAX_HOSTS_KEPT:
        _host_lines.clear()
    line = _host_lines[address] = b"host: %b\r\n" % str(address).encode()
    return line
