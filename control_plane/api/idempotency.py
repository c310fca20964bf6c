"""Idempotency-Key: a change that is sent again, because its answer was lost, is answered again and not made again.

After https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07. Answers are kept in the store,
so that it does not matter which control plane a request is sent to again, nor whether it has restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapters.store.claim import Claim, Kept, Phase, current
from adapters.store.config_store import StoreError
from control_plane.api.body_replay import given, read
from control_plane.api.idempotency_store import MAX_ANSWER_BYTES, KeptAnswers
from control_plane.api.problems import STORE_RETRY_S, problem
from control_plane.auth.authentication import Access
from control_plane.auth.callers import Caller

HEADER = "idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

UNCHANGING = frozenset({"/v1/explain", "/v1/steer", "/v1/what-if", "/v1/policies/validate"})
"""Paths whose POST changes nothing, so nothing could be made twice. Their answers would crowd those of changes out."""

MAX_KEY = 255

_log = structlog.get_logger(__name__)


class Idempotency:
    """ASGI middleware for every change; requests without the header pass untouched.

    Args:
        app: what answers.
        access: knows who calls: an answer is for the caller alone that got it first.
        answers: where they are kept.
    """

    def __init__(self, app: ASGIApp, access: Access, answers: KeptAnswers) -> None:
        self._app = app
        self._access = access
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] not in METHODS or scope["path"] in UNCHANGING:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = headers.get(HEADER)
        client = scope.get("client")
        address = client[0] if client else ""
        caller = await self._access.let_in(headers.get("authorization", ""), address) if key is not None else None
        if key is None or caller is None:
            await self._app(scope, receive, send)
            return
        if not 0 < len(key) <= MAX_KEY:
            await problem(400, f"Idempotency-Key has 1 to {MAX_KEY} characters")(scope, receive, send)
            return
        body = await read(receive)
        if body is None:
            return
        fingerprint = _fingerprint(scope, headers, body)
        try:
            claim = await self._answers.claim(_name(caller, scope, key), fingerprint)
        except StoreError as error:
            _log.warning("an Idempotency-Key cannot be looked up", reason=str(error))
            away = problem(503, "the store did not answer; nothing was changed", {"retry-after": str(STORE_RETRY_S)})
            await away(scope, receive, send)
            return
        if isinstance(claim, Claim):
            await self._handle(claim, scope, given(body, receive), send)
        else:
            await _repeated(claim, fingerprint)(scope, receive, send)

    async def _handle(self, claim: Claim, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request for the first time, and keep its answer before anybody has it."""
        answer = _Answer(send)
        token = current.set(claim)
        try:
            await self._app(scope, receive, answer.send)
            if answer.worth_keeping:
                await self._answers.answered(claim, *answer.parts())
        finally:
            current.reset(token)
            # What was refused or failed has changed nothing, and is judged anew when it comes again.
            await self._answers.release(claim)
        await answer.give()


class _Answer:
    """Holds an answer back until it is whole, as far as it may become one that is kept."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self._bytes = 0

    async def send(self, message: Message) -> None:
        self._held.append(message)
        self._bytes += len(message.get("body", b""))
        if self._bytes > MAX_ANSWER_BYTES:
            await self.give()

    async def give(self) -> None:
        """Send what is held."""
        held, self._held = self._held, []
        for message in held:
            await self._send(message)

    @property
    def worth_keeping(self) -> bool:
        if not self._held or self._held[0]["type"] != "http.response.start":
            return False
        return not self._held[-1].get("more_body", False) and 200 <= self._held[0]["status"] < 300

    def parts(self) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """Status, headers and body."""
        start, *rest = self._held
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ()))
        return start["status"], headers, b"".join(message.get("body", b"") for message in rest)


def _repeated(kept: Kept, fingerprint: str) -> ASGIApp:
    """The answer to a request that was claimed before."""
    if kept.fingerprint != fingerprint:
        return problem(422, "this Idempotency-Key was used for another request: choose a new one")
    if kept.phase is Phase.CLAIMED:
        detail = (
            f"the first request with this Idempotency-Key is under way at {kept.by}, or was when it ended: try again"
        )
        return problem(409, detail, {"retry-after": "1"})
    if kept.phase is Phase.MADE:
        detail = f"the change was made (audit entry {kept.audit}), and its answer is lost: look at what is there"
        return problem(409, detail, made=True, audit=kept.audit)
    return _Replay(kept)


class _Replay:
    """An answer that is kept, given again."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._kept.headers]
        await send({"type": "http.response.start", "status": self._kept.status, "headers": [*headers, REPLAYED]})
        await send({"type": "http.response.body", "body": self._kept.body, "more_body": False})


def _name(caller: Caller, scope: Scope, key: str) -> str:
    """Whose request it is, of which operation, and what they call it. Another role or scope is another caller."""
    who = msgspec.json.encode(caller, order="deterministic")
    return _digest((who, scope["method"].encode(), scope["path"].encode(), key.encode("latin-1", "replace")))


def _fingerprint(scope: Scope, headers: Headers, body: bytes) -> str:
    """What makes two requests of one operation the same."""
    named = (headers.get(name, "").encode("latin-1") for name in ("content-type", "if-match"))
    return _digest((scope["query_string"], *named, body))


def _digest(parts: Iterable[bytes]) -> str:
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()
