"""The head of a request as its target gets it: what of the client's passes, and what is said anew at this hop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regional_agent.carry.client_turns import ClientTurns
from regional_agent.carry.messages import Request, request_headers_onward
from regional_agent.ticket import Forward, Target, Ticket

if TYPE_CHECKING:
    from regional_agent.carry.upstream import Address

MOST_HOSTS_KEPT = 4096

_OWN_LINES = (
    b"%b %b HTTP/1.1\r\n%bx-request-id: %b\r\ntraceparent: %b\r\nx-request-timeout-ms: %d\r\n"
    b"x-forwarded-proto: %b\r\n%bvia: %b\r\n"
)

_host_lines: dict[Address, bytes] = {}


def request_onward(
    request: Request, ticket: Ticket, target: Target, client: ClientTurns, via: bytes, now: float
) -> bytes:
    """Request line and headers, ready to write.

    Args:
        via: this agent's pseudonym (RFC 9110, section 7.6.3). Answers get none: they say who served them.
        now: for what is left of the deadline.
    """
    if request.plain:
        proto, host, through, continued = client.scheme, request.authority, via, True
    else:
        proto, host = _as_asked(request, ticket, client)
        through = b", ".join([*request.every(b"via"), via])
        continued = request.header(b"traceparent") == ticket.traceparent.encode()
    own = _OWN_LINES % (
        request.method,
        request.target,
        _host_lines.get(target.address) or _host_line(target.address),
        ticket.request_id.encode(),
        ticket.traceparent.encode(),
        max(1, int((ticket.deadline_at - now) * 1000)),
        proto,
        b"x-forwarded-host: %b\r\n" % host if host else b"",
        through,
    )
    passing = request.passing
    if passing is not None:
        parts = [own, passing]
    else:
        parts = [own, *request_headers_onward(request, client.names_onward, keep_trace_state=continued)]
    if isinstance(target, Forward):
        parts.append(b"x-penstock-route: %b\r\n" % target.route_header)
    if request.upgrade:
        parts.append(b"connection: upgrade\r\nupgrade: %b\r\n" % request.upgrade)
    elif request.length is None:
        parts.append(b"transfer-encoding: chunked\r\n")
    else:
        parts.append(b"content-length: %d\r\n" % request.length)
    parts.append(b"\r\n")
    return b"".join(parts)


def _as_asked(request: Request, ticket: Ticket, client: ClientTurns) -> tuple[bytes, bytes]:
    """Scheme and host that the client used; a proxy of ours, or a peer with a signed context, is believed about it."""
    proto, host = request.header(b"x-forwarded-proto"), request.header(b"x-forwarded-host")
    if (proto is None and host is None) or not (ticket.context is not None or client.trusted):
        return client.scheme, request.authority
    return (proto if proto in (b"http", b"https") else client.scheme), host or request.authority


def _host_line(address: Address) -> bytes:
    if len(_host_lines) >= MOST_HOSTS_KEPT:
        _host_lines.clear()
    line = _host_lines[address] = b"host: %b\r\n" % str(address).encode()
    return line
