"""Forwards requests that need agents' reports to the leader, because only the leader receives reports.

A follower authenticates the caller, forwards the request with a signed statement of the caller instead of the
credential, and returns the leader's response unchanged. A forwarded request is never forwarded again. See
docs/adr/0009-followers-ask-the-leader.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapters.access.callers import Caller
from adapters.store.members import Member
from control_plane.api.authorisation import RouteRules
from control_plane.api.responses import problem_response
from control_plane.api.serving.api_threads import working_for
from control_plane.api.strict_requests import IDEMPOTENCY_KEY
from control_plane.leadership import forwarded_caller
from control_plane.leadership.forwarded_caller import ForgedCaller, ForwardedCallers, request_digest
from control_plane.leadership.leader_client import ForwardedRequest, LeaderClient, LeaderResponse, LeaderUnavailable
from control_plane.leadership.leader_elector import LeaderElector
from penstock.wire import identity

RETRY_S = 2
"""Retry-After (s) of a response without a leader: about the duration of an election."""

REQUEST_HEADERS = ("accept", "content-type", "if-match", "if-none-match", IDEMPOTENCY_KEY)
"""Request headers that are forwarded. The leader refuses changes with an Idempotency-Key."""

RESPONSE_HEADERS = (
    "content-type",
    "cache-control",
    "etag",
    "location",
    "retry-after",
    "allow",
)
"""Response headers that are returned to the client."""


class ForwardingRule(msgspec.Struct, frozen=True):
    """How an operation is forwarded."""

    timeout_s: float = 5.0
    """Time limit (s) of the forwarded request."""
    local_fallback: bool = False
    """Whether this control plane responds from its own state if the leader is unavailable or fails; the response
    reports that."""


OPERATIONS: Mapping[tuple[str, str], ForwardingRule] = MappingProxyType(
    {
        ("GET", "/v1/regions"): ForwardingRule(),
        ("GET", "/v1/regions/{name}"): ForwardingRule(),
        ("GET", "/v1/endpoints"): ForwardingRule(),
        ("GET", "/v1/agents"): ForwardingRule(),
        ("GET", "/v1/history"): ForwardingRule(),
        ("GET", "/v1/capacity/recommendations"): ForwardingRule(),
        ("GET", "/v1/capacity/takeover"): ForwardingRule(),
        ("GET", "/v1/usage"): ForwardingRule(timeout_s=70.0),
        ("GET", "/v1/budgets"): ForwardingRule(),
        ("GET", "/v1/tenants/{name}/refusals"): ForwardingRule(),
        ("POST", "/v1/explain"): ForwardingRule(),
        ("POST", "/v1/what-if"): ForwardingRule(timeout_s=60.0),
        # Residency and distance are valid without health, and a client needs an entry region in any case.
        ("GET", "/v1/steer"): ForwardingRule(timeout_s=2.0, local_fallback=True),
        # Followers have no reports: without the leader, no name has a live region.
        ("GET", "/v1/dns"): ForwardingRule(),
        # The ETag, which halt and rollback need, comes from the store and is valid without the leader.
        ("GET", "/v1/rollouts/current"): ForwardingRule(timeout_s=2.0, local_fallback=True),
        # Guard rails need the available capacity.
        ("POST", "/v1/overrides"): ForwardingRule(),
        ("PUT", "/v1/overrides/{id}"): ForwardingRule(),
        ("POST", "/v1/regions/{name}/drain"): ForwardingRule(),
        # The conditions of a drill need the agents' reports.
        ("POST", "/v1/drills"): ForwardingRule(timeout_s=15.0),
        ("PUT", "/v1/drills/{number}"): ForwardingRule(timeout_s=15.0),
    }
)
"""Forwarded operations by method and path. GET /v1/status is not forwarded: the route requests a part of its
response from the leader."""

_PATTERNS = [(method, compile_path(path)[0], rule) for (method, path), rule in OPERATIONS.items()]


class ControlPlanePeers(NamedTuple):
    """The other control planes, as those that requests are forwarded to and come from."""

    elector: LeaderElector
    """Provides the control plane that receives the reports."""
    client: LeaderClient
    """Sends requests to the leader."""
    callers: ForwardedCallers
    """Verifies the callers of forwarded requests."""


class LeaderForwarding:
    """ASGI middleware that forwards the operations that need the leader.

    Args:
        app: the application of this control plane.
        peers: the other control planes.
        rules: the role that each route requires.
    """

    def __init__(self, app: ASGIApp, peers: ControlPlanePeers, rules: RouteRules) -> None:
        self._app = app
        self._peers = peers
        self._elector = peers.elector
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        token = headers.get(forwarded_caller.HEADER)
        if token is not None:
            await self._answer_forwarded(token, headers, scope, receive, send)
            return
        rule, authority = _rule(scope), self._elector.authority
        if rule is None or authority is self._elector.member:
            await self._app(scope, receive, send)
            return
        caller = scope.get("state", {}).get("caller")
        if caller is None:
            # The route rejects the request.
            await self._app(scope, receive, send)
        elif authority is not None:
            await self._forward(rule, authority, scope, receive, send)
        elif rule.local_fallback:
            await self._app(scope, receive, send)
        else:
            detail = "no control plane leads, so the health and load of the fleet are unknown; try again"
            await problem_response(503, detail, {"retry-after": str(RETRY_S)}, leader=None)(scope, receive, send)

    async def _answer_forwarded(self, token: str, headers: Headers, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that another control plane forwarded; 503 if this control plane is not the leader."""
        if self._elector.authority is not self._elector.member:
            detail = f"the request was forwarded to {self._elector.member.name}, which does not lead; try again"
            await problem_response(503, detail, {"retry-after": str(RETRY_S)})(scope, receive, send)
            return
        certificate = headers.get(identity.HEADER, "")
        try:
            # Before the body is read: otherwise an unauthenticated request could occupy memory.
            _, stated = self._peers.callers.verify(token, certificate)
            route = self._rules.of(scope)
            if route is not None and route.role is not None and not stated.caller.role.covers(route.role):
                detail = (
                    f"{stated.caller.name} has the role {stated.caller.role.value}; this requires {route.role.value}"
                )
                await problem_response(403, detail)(scope, receive, send)
                return
            body = await _read_body(receive)
            if body is None:
                return
            forwarded = self._peers.callers.accept(
                token, certificate, request_digest(scope["method"], _target(scope), body)
            )
        except ForgedCaller as error:
            detail = f"the forwarded request is not signed by a control plane of this fleet: {error}"
            await problem_response(401, detail)(scope, receive, send)
            return
        working_for.set(forwarded.caller.name)
        state = {**scope.get("state", {}), "forwarded": True, "caller": forwarded.caller}
        scope = {**scope, "client": (forwarded.client, 0), "state": state}
        await self._app(scope, _replay_body(body, receive), send)

    async def _forward(self, rule: ForwardingRule, leader: Member, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        given = Headers(scope=scope)
        headers = {name: given[name] for name in REQUEST_HEADERS if name in given}
        caller: Caller = scope["state"]["caller"]
        request = ForwardedRequest(scope["method"], _target(scope), caller, _client(scope), headers, body)
        try:
            reply = await self._peers.client.forward(leader, request, rule.timeout_s)
        except LeaderUnavailable as error:
            if rule.local_fallback:
                await self._app(scope, _replay_body(body, receive), send)
            else:
                await _leader_unavailable(leader, str(error))(scope, receive, send)
            return
        if reply.status == 401:
            reason = "it does not accept this control plane's certificate: check both, and the clocks"
            await _leader_unavailable(leader, reason)(scope, receive, send)
        elif rule.local_fallback and reply.status >= 500:
            await self._app(scope, _replay_body(body, receive), send)
        else:
            await _send_reply(reply, send)


def _rule(scope: Scope) -> ForwardingRule | None:
    for method, pattern, rule in _PATTERNS:
        if method == scope["method"] and pattern.match(scope["path"]):
            return rule
    return None


def _target(scope: Scope) -> str:
    """Return path and query of a request, encoded identically at follower and leader: the digest covers them."""
    query = scope["query_string"].decode("latin-1")
    return quote(scope["path"]) + (f"?{query}" if query else "")


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _leader_unavailable(leader: Member, reason: str) -> ASGIApp:
    detail = f"the request needs the leader, {leader.name} at {leader.url}: {reason}"
    return problem_response(503, detail, {"retry-after": str(RETRY_S)}, leader=msgspec.to_builtins(leader))


async def _send_reply(reply: LeaderResponse, send: Send) -> None:
    headers = [
        (name.encode(), reply.headers[name].encode("latin-1")) for name in RESPONSE_HEADERS if name in reply.headers
    ]
    length = (b"content-length", str(len(reply.body)).encode())
    await send({"type": "http.response.start", "status": reply.status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


async def _read_body(receive: Receive) -> bytes | None:
    """Return the whole body; None if the client disconnected. The caller limits the size, see `RequestLimits`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that provides `body`, then the messages of the original `receive`."""
    done = False

    async def replay() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
