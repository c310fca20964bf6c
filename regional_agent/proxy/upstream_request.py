"""What the agent changes in a request of a client, and its header lines for an engine or a peer."""

from __future__ import annotations

from typing import Final

from penstock.answers.content_decoder import decoded_codings
from penstock.continuation.stream_usage import StreamUsage, opted_in
from penstock.http.header_rules import HeaderFilter
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request, request_lines_to_upstream
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.request_context import RequestContext

_IDENTITY: Final = b"identity"
_ACCEPT_ENCODING: Final = b"accept-encoding"
_ACCEPTED: Final = b"\r\naccept-encoding: %b\r\n"


def ask_for_identity(request: Request) -> None:
    """Ask for a response without content coding, because the agent changes the stream.

    A header that is absent stays absent: servers then send no coding.
    """
    accepted = request.header(_ACCEPT_ENCODING)
    if accepted is None or accepted == _IDENTITY:
        return
    request.headers = [(name, _IDENTITY if name == _ACCEPT_ENCODING else value) for name, value in request.headers]
    request.by_name = {**request.by_name, _ACCEPT_ENCODING: _IDENTITY}
    # The cached lines begin with another header. Several lines of this header are all written again.
    lines = b"" if request.repeats else request.upstream_lines
    request.upstream_lines = lines.replace(_ACCEPTED % decoded_codings(accepted), _ACCEPTED % _IDENTITY)


def ask_for_usage(
    proxy: Proxy, context: RequestContext, usage: StreamUsage, now: float, *, may_continue: bool = True
) -> None:
    """Ask for the usage of a stream in the body of its request, unless that is done. `now` by the agent's clock (s).

    Args:
        may_continue: whether the caller could send the rest of the stream to another target.
    """
    request = context.request
    # A body with the flag of the agent, which a fallback model receives too, does not state what the client wants.
    if usage.continuable is not None or usage.flag is not None:
        return
    if not request.whole or request.body_dropped or request.http_1_0:
        return
    if usage.was_refused or not proxy.usage_requests.may_ask(context.model, now):
        return
    flag = () if request.upgrade else proxy.answer_formats.of(request.route).request_flag
    may_continue = may_continue and context.route_context is None and opted_in(context.policy, context.model)
    body = usage.ask(request.path, request.body, flag, may_continue=may_continue)
    if body is not None:
        request.body, request.length = body, len(body)
        ask_for_identity(request)


def withdraw_usage(context: RequestContext, usage: StreamUsage) -> None:
    """Send the request as the client sent it, to an engine that refuses the flag of the agent."""
    request, flag = context.request, usage.flag
    assert flag is not None
    if not request.body_dropped:
        request.body = flag.removed_from(request.body)
        request.length = len(request.body)
    usage.withdraw()


def client_lines(request: Request, context: RequestContext, client: ClientConnection) -> bytes:
    """The header lines that come from the client."""
    if request.plain:
        return request_lines_to_upstream(request, client.listener.to_upstream, client.scheme, request.authority)
    return special_lines(request, context, client.listener.to_upstream, client.scheme, trusted=client.trusted)


def special_lines(
    request: Request, context: RequestContext, passing: HeaderFilter, scheme: bytes, *, trusted: bool
) -> bytes:
    """The header lines that come from a client whose request may have any header.

    Args:
        passing: filter of the headers that pass.
        scheme: scheme of the client's connection.
        trusted: whether the client is a trusted proxy.
    """
    given = request.header(b"traceparent") or b""
    same_trace = given[3:35] == context.traceparent[3:35].encode()
    proto, host = _scheme_and_host(request, scheme, trusted=trusted or context.route_context is not None)
    return request_lines_to_upstream(request, passing, proto, host, keep_trace_state=same_trace)


def _scheme_and_host(request: Request, scheme: bytes, *, trusted: bool) -> tuple[bytes, bytes]:
    """Scheme and host that the client used. X-Forwarded headers count only from trusted proxies and peer agents."""
    proto, host = request.header(b"x-forwarded-proto"), request.header(b"x-forwarded-host")
    if (proto is None and host is None) or not trusted:
        return scheme, request.authority
    return (proto if proto in (b"http", b"https") else scheme), host or request.authority
