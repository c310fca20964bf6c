"""Sessions of browsers: an encrypted cookie, so that scripts of the page keep no credential.

The page signs in once, with a credential in the Authorization header or through the identity provider, and receives
the cookie. The cookie contains the credential, which is validated again for each request, or the caller that the
provider authenticated. Later requests carry the cookie and the header `x-penstock-ui`, which a page of another origin
cannot send without a preflight that is refused; the cookie is also SameSite=Strict. Both together prevent cross-site
request forgery (OWASP, "Cross-Site Request Forgery Prevention Cheat Sheet": custom request headers).

The control plane stores no session: a session survives a restart of the control plane. It ends when it expires, the
session (`session_revocations`) or the credential is revoked, or the key of the control plane's certificate is replaced.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.access.callers import Caller
from control_plane.api.responses import STORE_RETRY_S, problem_response
from control_plane.auth.code_flow import PendingSignIn

COOKIE = "penstock-session"
PENDING_COOKIE = "penstock-sign-in"
SECURE_PREFIX = "__Host-"
"""Prefix of cookie names over TLS; browsers require Secure, Path=/ and no Domain with it (RFC 6265bis, 4.1.3.2)."""

HEADER = b"x-penstock-ui"

SESSION_STATE = "browser_session"
"""Name of the session in the state of a request."""

LIFETIME_S = 12 * 3600
"""Lifetime (s) of the session of a credential: a working day."""

CALLER_LIFETIME_S = 900
"""Lifetime (s) of a session of the identity provider. The page then signs in at the provider again, because the
person's groups or account may have changed."""

PENDING_LIFETIME_S = 600
"""Maximum time (s) of a sign-in at the identity provider."""

MAX_COOKIE_CHARS = 4096 - len(SECURE_PREFIX + COOKIE)
"""Maximum length (characters) of a cookie's value; browsers ignore a cookie whose name and value are longer than 4096
bytes together (RFC 6265bis, 5.6)."""

MAX_COOKIES_BYTES = 16 * 1024
"""Maximum size (bytes) of the header with all cookies of a request; a larger one is ignored."""

_VALUE = re.compile(r'"?([A-Za-z0-9_=-]+)"?')
"""The value of a cookie of this module: base64, in quotes or not."""

ID_BYTES = 12
"""Number of random bytes of the identifier of a session."""

_NONCE_BYTES = 12
_PURPOSE = b"penstock/ui-session"
_PENDING_PURPOSE = b"penstock/ui-sign-in"

_T = TypeVar("_T")


class Session(msgspec.Struct, frozen=True, array_like=True):
    """A session, as its cookie states it."""

    id: str
    caller: str
    """Name of the caller."""
    began_at: float
    """Unix time (s)."""
    content: str | Caller
    """The credential of the caller, or the caller that the identity provider authenticated."""


class BrowserSessions:
    """Seals sessions and pending sign-ins into the values of cookies, and opens them."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time, *, fleet: str = "") -> None:
        """Derive the key.

        Args:
            secret: a secret that only this control plane has, such as the private key of its certificate.
            clock: Unix time, in seconds.
            fleet: name and prefix of the fleet, because a control plane of another fleet may have the same certificate,
                and other operators.
        """
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, _PURPOSE + fleet.encode()).derive(secret))
        self._clock = clock

    def seal(self, credential: str, caller: str) -> str:
        """Return the cookie value of a new session with a credential.

        Args:
            credential: the credential.
            caller: name of the caller that the credential authenticates.

        Raises:
            ValueError: the credential is too long for a cookie.
        """
        return self._seal(_PURPOSE, LIFETIME_S, self._begin(caller, credential))

    def seal_caller(self, caller: Caller) -> str:
        """Return the cookie value of a new session of a caller that the identity provider authenticated.

        Raises:
            ValueError: the caller has too many regions for a cookie.
        """
        return self._seal(_PURPOSE, CALLER_LIFETIME_S, self._begin(caller.name, caller))

    def seal_pending(self, pending: PendingSignIn) -> str:
        """Return the cookie value of a pending sign-in."""
        return self._seal(_PENDING_PURPOSE, PENDING_LIFETIME_S, pending)

    def open(self, value: str) -> Session | None:
        """Return the session of a cookie value; None if it has expired or another control plane sealed it."""
        return self._open(_PURPOSE, value, tuple[int, Session])

    def open_pending(self, value: str) -> PendingSignIn | None:
        """Return the pending sign-in of a cookie value; None as for `open`."""
        return self._open(_PENDING_PURPOSE, value, tuple[int, PendingSignIn])

    def _begin(self, caller: str, content: str | Caller) -> Session:
        return Session(base64.urlsafe_b64encode(os.urandom(ID_BYTES)).decode(), caller, self._clock(), content)

    def _seal(self, purpose: bytes, lifetime_s: int, content: object) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        plain = msgspec.json.encode((int(self._clock()) + lifetime_s, content))
        value = base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, plain, purpose)).decode()
        if len(value) > MAX_COOKIE_CHARS:
            raise ValueError("the session is too long for a cookie; sign in with an API key")
        return value

    def _open(self, purpose: bytes, value: str, type_: type[tuple[int, _T]]) -> _T | None:
        if len(value) > MAX_COOKIE_CHARS:
            return None
        try:
            sealed = base64.urlsafe_b64decode(value.encode("ascii"))
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose)
            expires_at, content = msgspec.json.decode(plain, type=type_)
        except (binascii.Error, ValueError, InvalidTag):
            return None
        return content if self._clock() < expires_at else None


class SessionCookies:
    """ASGI middleware that adds the credential or the caller of the session to a request of the page.

    Of the cookies, only the two of this module reach the application: the parsers of Python's standard library, which
    Starlette uses, take seconds for some cookies of the size that a request may have (CVE-2024-7592).

    Args:
        app: the application.
        sessions: opens the cookies.
        is_revoked: whether a session is revoked; None while that is unknown, for which the answer is 503.
    """

    def __init__(self, app: ASGIApp, sessions: BrowserSessions, is_revoked: Callable[[Session], bool | None]) -> None:
        self._app = app
        self._sessions = sessions
        self._is_revoked = is_revoked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _with_own_cookies(scope)
        session = self._session(scope)
        is_revoked = session is not None and self._is_revoked(session)
        if is_revoked is None:
            detail = "which sessions are revoked is not read from the store yet: repeat the request, or sign in again"
            await problem_response(503, detail, {"retry-after": str(STORE_RETRY_S)})(scope, receive, send)
            return
        await self._app(scope if session is None or is_revoked else _with_session(scope, session), receive, send)

    def _session(self, scope: Scope) -> Session | None:
        names = {name for name, _ in scope["headers"]}
        if HEADER not in names or b"authorization" in names:
            return None
        value = cookie(scope, COOKIE)
        return self._sessions.open(value) if value is not None else None


def _with_session(scope: Scope, session: Session) -> Scope:
    state = {**scope.get("state", {}), SESSION_STATE: session}
    if isinstance(session.content, Caller):
        return {**scope, "state": {**state, "caller": session.content}}
    credential = f"Bearer {session.content}".encode()
    return {**scope, "state": state, "headers": [*scope["headers"], (b"authorization", credential)]}


def cookie(scope: Scope, name: str) -> str | None:
    """Return the value of one of the cookies of this module; None if the request has no such cookie."""
    return _own_cookies(scope).get(cookie_name(name, scope["scheme"] == "https"))


def _own_cookies(scope: Scope) -> dict[str, str]:
    """Return the cookies of this module that a request has."""
    sent = next((value for header, value in scope["headers"] if header == b"cookie"), b"")
    if len(sent) > MAX_COOKIES_BYTES:
        return {}
    found: dict[str, str] = {}
    own = {cookie_name(name, scope["scheme"] == "https") for name in (COOKIE, PENDING_COOKIE)}
    for part in sent.decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        # Starlette quotes a value with `=`, and browsers return the quotes.
        if name in own and (match := _VALUE.fullmatch(value)):
            found.setdefault(name, match[1])
    return found


def _with_own_cookies(scope: Scope) -> Scope:
    """Return a scope without other cookies."""
    if all(name != b"cookie" for name, _ in scope["headers"]):
        return scope
    own = "; ".join(f"{name}={value}" for name, value in _own_cookies(scope).items())
    kept = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    return {**scope, "headers": [*kept, (b"cookie", own.encode())] if own else kept}


def set_cookie(response: Response, request: Request, name: str, value: str, max_age_s: int, samesite: Any) -> None:
    """Add a cookie to a response; with `max_age_s` 0, the browser deletes the cookie."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        cookie_name(name, secure), value, max_age=max_age_s, path="/", secure=secure, httponly=True, samesite=samesite
    )


def cookie_name(name: str, secure: bool) -> str:
    """Return the name of a cookie: with SECURE_PREFIX over TLS (`secure`), unchanged on loopback without TLS."""
    return f"{SECURE_PREFIX}{name}" if secure else name
