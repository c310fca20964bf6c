"""What needs agents' reports is answered by the leader, who alone hears them, whichever control plane is asked.

Another one hands the request on, with the caller's credential, and gives the answer back as it is. It identifies the
caller first, so that nobody can use it to try credentials at the leader. What was handed on once is never handed on
again. See docs/adr/0009-followers-ask-the-leader.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.store.members import Member
from control_plane.api.body_replay import given, read
from control_plane.api.idempotency import HEADER as IDEMPOTENCY_KEY
from control_plane.api.problems import problem
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.leadership.leader_client import HOP_HEADER, LeaderAway, Reply

RETRY_S = 2
"""When (s) to ask again: by then another leads, or the one that does not answer leads no longer."""

HANDED_ON = ("authorization", "accept", "content-type", "if-match", "if-none-match", IDEMPOTENCY_KEY)
"""Headers of a request that the leader gets; a client's others mean nothing here."""

GIVEN_BACK = (
    "content-type",
    "cache-control",
    "etag",
    "location",
    "retry-after",
    "idempotency-replayed",
    "allow",
)
"""Headers of the leader's answer that the client gets."""


class Asked(msgspec.Struct, frozen=True):
    """How an operation is asked of the leader."""

    within_s: float = 5.0
    """Bound of the whole of it."""
    else_own: bool = False
    """Whether what this control plane knows by itself will do while the leader cannot be asked; the answer says so."""


OPERATIONS: Mapping[tuple[str, str], Asked] = MappingProxyType(
    {
        ("GET", "/v1/regions"): Asked(),
        ("GET", "/v1/regions/{name}"): Asked(),
        ("GET", "/v1/pools"): Asked(),
        ("GET", "/v1/endpoints"): Asked(),
        ("GET", "/v1/agents"): Asked(),
        ("POST", "/v1/explain"): Asked(),
        ("POST", "/v1/what-if"): Asked(within_s=60.0),
        # Residency and distance hold without health, and a client has to come in somewhere.
        ("GET", "/v1/steer"): Asked(within_s=2.0, else_own=True),
        ("POST", "/v1/steer"): Asked(else_own=True),
        # Its ETag, which halting and rolling back need, comes from the store and is right without the leader.
        ("GET", "/v1/rollouts/current"): Asked(within_s=2.0, else_own=True),
        # Guard rails have to know what stands.
        ("POST", "/v1/overrides"): Asked(),
        ("POST", "/v1/regions/{name}/drain"): Asked(),
    }
)
"""By method and path, as the API's description has them. GET /v1/status asks for itself, for a part of its answer."""

_PATTERNS = [(method, compile_path(path)[0], asked) for (method, path), asked in OPERATIONS.items()]


class LeadersWord:
    """ASGI middleware: hands on what only the leader can answer.

    Args:
        app: what answers here.
        control_plane: knows who leads.
        access: knows who calls.
    """

    def __init__(self, app: ASGIApp, control_plane: ControlPlane, access: Access) -> None:
        self._app = app
        self._control_plane = control_plane
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        hop = self._control_plane.link.opened(headers.get(HOP_HEADER))
        if hop is not None:
            await self._here(hop.client, scope, receive, send)
            return
        asked, authority = _asked(scope), self._control_plane.authority
        if asked is None or authority is self._control_plane.member or not await self._is_known(headers, scope):
            await self._app(scope, receive, send)
        elif authority is not None:
            await self._there(asked, authority, headers, scope, receive, send)
        elif asked.else_own:
            await self._app(scope, receive, send)
        else:
            detail = "no control plane leads, so nobody knows the fleet's health and load; try again"
            await problem(503, detail, {"retry-after": str(RETRY_S)}, leader=None)(scope, receive, send)

    async def _here(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what another control plane handed on, if it is for this one to answer."""
        if self._control_plane.authority is not self._control_plane.member:
            name = self._control_plane.member.name
            detail = f"{name} was asked as the leader and does not lead; try again"
            await problem(503, detail, {"retry-after": str(RETRY_S)})(scope, receive, send)
            return
        state = {**scope.get("state", {}), "handed_on": True}
        await self._app({**scope, "client": (client, 0), "state": state}, receive, send)

    async def _there(
        self, asked: Asked, leader: Member, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await read(receive)
        if body is None:
            return
        handed = {name: headers[name] for name in HANDED_ON if name in headers}
        query = scope["query_string"].decode("latin-1")
        target = quote(scope["path"]) + (f"?{query}" if query else "")
        try:
            reply = await self._control_plane.link.ask(
                leader, scope["method"], target, handed, body, client=_address(scope), within_s=asked.within_s
            )
        except LeaderAway as away:
            if asked.else_own:
                await self._app(scope, given(body, receive), send)
            else:
                await _unanswered(leader, str(away))(scope, receive, send)
            return
        if reply.status == 401:
            why = "it does not know your credential, which is known here: give every control plane the same callers"
            await _unanswered(leader, why)(scope, receive, send)
        elif asked.else_own and reply.status >= 500:
            await self._app(scope, given(body, receive), send)
        else:
            await _give(reply, send)

    async def _is_known(self, headers: Headers, scope: Scope) -> bool:
        """Whether somebody asks whom this control plane lets in; the route refuses everybody else, and counts it."""
        return await self._access.let_in(headers.get("authorization", ""), _address(scope)) is not None


def _asked(scope: Scope) -> Asked | None:
    for method, pattern, asked in _PATTERNS:
        if method == scope["method"] and pattern.match(scope["path"]):
            return asked
    return None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _unanswered(leader: Member, why: str) -> ASGIApp:
    detail = f"{leader.name} at {leader.url} leads and has to be asked: {why}"
    return problem(503, detail, {"retry-after": str(RETRY_S)}, leader=msgspec.to_builtins(leader))


async def _give(reply: Reply, send: Send) -> None:
    headers = [(name.encode(), reply.headers[name].encode("latin-1")) for name in GIVEN_BACK if name in reply.headers]
    length = (b"content-length", str(len(reply.body)).encode())
    await send({"type": "http.response.start", "status": reply.status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})
