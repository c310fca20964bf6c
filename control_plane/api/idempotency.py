"""Idempotency-Key: a repeated request returns the first response, and the change is not made again.

Implements https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07. Responses are in the
store, so a request may be repeated at any control plane, and after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapters.access.callers import Caller
from adapters.store.config_store import StoreError
from control_plane.api.body_replay import read_body, replay_body
from control_plane.api.idempotency_store import MAX_RESPONSE_BYTES, IdempotencyStore
from control_plane.api.responses import STORE_RETRY_S, problem_response
from control_plane.api.route_rules import RouteRules
from control_plane.audit.idempotency_claim import Claim, IdempotencyRecord, Phase, current

HEADER = "idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

READ_ONLY = frozenset({"/v1/explain", "/v1/steer", "/v1/what-if", "/v1/policies/validate"})
"""Paths whose POST requests change nothing. Their responses are not stored, to leave room for responses of changes."""

MAX_KEY_CHARS = 255

_log = structlog.get_logger(__name__)


class Idempotency:
    """ASGI middleware for all changes that carry an Idempotency-Key.

    Args:
        app: the application.
        store: the stored responses. A response is returned only to the caller that received it first.
        rules: the role that each route requires. `Authorisation` has authorised the callers of these routes.
    """

    def __init__(self, app: ASGIApp, store: IdempotencyStore, rules: RouteRules) -> None:
        self._app = app
        self._store = store
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] not in METHODS or scope["path"] in READ_ONLY:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = headers.get(HEADER)
        rule = self._rules.of(scope) if key is not None else None
        if key is None or rule is None or rule.role is None:
            await self._app(scope, receive, send)
            return
        caller: Caller = scope["state"]["caller"]
        if not 0 < len(key) <= MAX_KEY_CHARS:
            detail = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters"
            await problem_response(400, detail)(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None:
            return
        fingerprint = _fingerprint(scope, headers, body)
        try:
            claim = await self._store.claim(_request_name(caller, scope, key), fingerprint)
        except StoreError as error:
            _log.warning("Idempotency-Key not looked up", reason=str(error))
            detail = "the store did not answer; nothing was changed"
            await problem_response(503, detail, {"retry-after": str(STORE_RETRY_S)})(scope, receive, send)
            return
        if isinstance(claim, Claim):
            await self._handle(claim, scope, replay_body(body, receive), send)
        else:
            await _repeated_response(claim, fingerprint)(scope, receive, send)

    async def _handle(self, claim: Claim, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the first request with a key, and store the response before it is sent."""
        response = _BufferedResponse(send)
        token = current.set(claim)
        try:
            await self._app(scope, receive, response.send)
            if response.storable:
                await self._store.answered(claim, *response.parts())
        finally:
            current.reset(token)
            # The claim of a request that changed nothing is removed, so that a repetition of the request is handled.
            await self._store.release(claim)
        await response.flush()


class _BufferedResponse:
    """Holds a response back until it is complete, as long as it is small enough to be stored."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self._bytes = 0

    async def send(self, message: Message) -> None:
        self._held.append(message)
        self._bytes += len(message.get("body", b""))
        if self._bytes > MAX_RESPONSE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send the held messages."""
        held, self._held = self._held, []
        for message in held:
            await self._send(message)

    @property
    def storable(self) -> bool:
        """Whether the response is complete, successful, not yet sent, and sets no cookie.

        A cookie is a credential, which a reader of the store could use.
        """
        if not self._held or self._held[0]["type"] != "http.response.start":
            return False
        if any(name.lower() == b"set-cookie" for name, _ in self._held[0].get("headers", ())):
            return False
        return not self._held[-1].get("more_body", False) and 200 <= self._held[0]["status"] < 300

    def parts(self) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """Return status, headers and body."""
        start, *rest = self._held
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ()))
        return start["status"], headers, b"".join(message.get("body", b"") for message in rest)


def _repeated_response(record: IdempotencyRecord, fingerprint: str) -> ASGIApp:
    """Return the response to a request whose key was used before."""
    if record.fingerprint != fingerprint:
        return problem_response(422, "this Idempotency-Key was used for another request: use a new one")
    if record.phase is Phase.CLAIMED:
        detail = f"the first request with this Idempotency-Key is in progress at {record.by}, or was cut off: try again"
        return problem_response(409, detail, {"retry-after": "1"})
    if record.phase is Phase.MADE:
        detail = f"the change was made (audit entry {record.audit}), and its response was lost: read the current state"
        return problem_response(409, detail, made=True, audit=record.audit)
    return _Replay(record)


class _Replay:
    """Sends a stored response."""

    def __init__(self, record: IdempotencyRecord) -> None:
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._record.headers]
        await send({"type": "http.response.start", "status": self._record.status, "headers": [*headers, REPLAYED]})
        await send({"type": "http.response.body", "body": self._record.body, "more_body": False})


def _request_name(caller: Caller, scope: Scope, key: str) -> str:
    """Return the digest of caller, operation and key. A caller with another role or scope counts as another caller."""
    encoded_caller = msgspec.json.encode(caller, order="deterministic")
    parts = (encoded_caller, scope["method"].encode(), scope["path"].encode(), key.encode("latin-1", "replace"))
    return _digest(parts)


def _fingerprint(scope: Scope, headers: Headers, body: bytes) -> str:
    """Return the digest of query, content type, If-Match and body, which a repetition must have in common."""
    compared = (headers.get(name, "").encode("latin-1") for name in ("content-type", "if-match"))
    return _digest((scope["query_string"], *compared, body))


def _digest(parts: Iterable[bytes]) -> str:
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()
