"""Idempotency-Key: a change that is sent again, because its answer was lost, is answered again and not made again.

After https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07. Answers are kept by the
control plane that gave them: send a retry to the same one. Elsewhere, or after a restart, If-Match and names that
callers choose keep a change from being made twice.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.access.access import Access, Unidentified
from control_plane.access.callers import Caller
from control_plane.api.whole_body import given, read
from control_plane.problems import problem

HEADER = "idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

LONGEST_KEY = 255
KEPT_S = 3600.0
"""How long (s) an answer is kept."""
MOST_KEPT = 1_000
"""Answers kept; beyond it the oldest go."""
MOST_BYTES = 8 * 1024 * 1024
"""Bytes of answers kept, all together."""
LARGEST_ANSWER_BYTES = 256 * 1024
"""A larger one is not kept."""


class Kept(msgspec.Struct):
    """A request seen and what was answered."""

    fingerprint: bytes
    """Of everything else in the request that matters."""
    caller: Caller
    """As who it was made: whoever has lost a role since is not answered from here."""
    at: float
    messages: list[Message] | None = None
    """The answer; None while it is being made."""
    size: int = 0
    """Bytes of it."""


Name = tuple[str, str, str, str]
"""Caller, method, path and key: a key is the caller's, and of one operation."""


class Answers:
    """Answers by name, bounded in number, bytes and age.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[Name, Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, name: Name) -> Kept | None:
        """What is kept under a name."""
        self._forget()
        return self._kept.get(name)

    def begin(self, name: Name, fingerprint: bytes, caller: Caller) -> Kept:
        """Note that a request is under way."""
        one = Kept(fingerprint, caller, self._clock())
        self.drop(name)
        self._kept[name] = one
        self._forget()
        return one

    def keep(self, name: Name, one: Kept, messages: list[Message]) -> None:
        """Keep the answer of a request that ended, unless it was forgotten meanwhile."""
        if self._kept.get(name) is one:
            one.messages = messages
            one.size = sum(len(message.get("body", b"")) for message in messages)
            self._bytes += one.size
            self._forget()

    def drop(self, name: Name) -> None:
        """Forget a request."""
        one = self._kept.pop(name, None)
        if one is not None:
            self._bytes -= one.size

    def _forget(self) -> None:
        while self._kept:
            oldest = next(iter(self._kept))
            aged = self._clock() - self._kept[oldest].at > KEPT_S
            if not aged and len(self._kept) <= MOST_KEPT and self._bytes <= MOST_BYTES:
                return
            self.drop(oldest)


class Idempotency:
    """ASGI middleware for every change; requests without the header pass untouched.

    Args:
        app: what answers.
        access: knows who calls: an answer is for the caller alone that got it first.
        clock: seconds, monotonic.
    """

    def __init__(self, app: ASGIApp, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._access = access
        self._answers = Answers(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] not in METHODS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = headers.get(HEADER)
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if key is None or scheme.lower() != "bearer":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._access.caller(credential.strip())
        except Unidentified:
            # The route refuses it, and counts the failure.
            await self._app(scope, receive, send)
            return
        if not 0 < len(key) <= LONGEST_KEY:
            await problem(400, f"Idempotency-Key has 1 to {LONGEST_KEY} characters")(scope, receive, send)
            return
        body = await read(receive)
        if body is None:
            return
        name = (caller.name, scope["method"], scope["path"], key)
        await self._once(name, caller, _fingerprint(scope, headers, body), body, scope, receive, send)

    async def _once(
        self,
        name: Name,
        caller: Caller,
        fingerprint: bytes,
        body: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        found = self._answers.find(name)
        if found is not None and found.caller == caller:
            if found.fingerprint != fingerprint:
                refusal = problem(422, "this Idempotency-Key was used for another request: choose a new one")
                await refusal(scope, receive, send)
            elif found.messages is None:
                refusal = problem(409, "the first request with this Idempotency-Key is under way", {"retry-after": "1"})
                await refusal(scope, receive, send)
            else:
                for message in found.messages:
                    await send(message)
            return
        one = self._answers.begin(name, fingerprint, caller)
        answer = _Answer(send)
        kept = False
        try:
            await self._app(scope, given(body, receive), answer.send)
            kept = answer.worth_keeping
        finally:
            # What was refused or failed has changed nothing, and is judged anew when it comes again.
            if kept:
                self._answers.keep(name, one, answer.replay())
            elif self._answers.find(name) is one:
                self._answers.drop(name)


class _Answer:
    """Passes an answer on and remembers it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []
        self._bytes = 0

    async def send(self, message: Message) -> None:
        self._bytes += len(message.get("body", b""))
        if self._bytes <= LARGEST_ANSWER_BYTES:
            self._messages.append(message)
        await self._send(message)

    @property
    def worth_keeping(self) -> bool:
        done = bool(self._messages) and not self._messages[-1].get("more_body", False)
        return done and self._bytes <= LARGEST_ANSWER_BYTES and 200 <= self._messages[0]["status"] < 300

    def replay(self) -> list[Message]:
        start, *rest = self._messages
        return [{**start, "headers": [*start.get("headers", ()), REPLAYED]}, *rest]


def _fingerprint(scope: Scope, headers: Headers, body: bytes) -> bytes:
    """What makes two requests of one operation the same."""
    parts = (
        scope["query_string"],
        headers.get("content-type", "").encode("latin-1"),
        headers.get("if-match", "").encode("latin-1"),
        body,
    )
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
