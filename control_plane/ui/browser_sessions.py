"""Sessions of browsers: an encrypted cookie, so that scripts of the page keep no credential.

The page signs in once, with a credential in the Authorization header or through the identity provider, and receives
the cookie. The cookie contains the credential, which is validated again for each request, or the caller that the
provider authenticated. Later requests carry the cookie and the header `x-penstock-ui`, which a page of another origin
cannot send without a preflight that is refused; the cookie is also SameSite=Strict. Both together prevent cross-site
request forgery (OWASP, "Cross-Site Request Forgery Prevention Cheat Sheet": custom request headers).

The control plane stores no session: a session survives a restart of the control plane, and ends when it expires, the
credential is revoked, or the key of the control plane's certificate is replaced.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
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
from control_plane.auth.code_flow import PendingSignIn

COOKIE = "penstock-session"
PENDING_COOKIE = "penstock-sign-in"
SECURE_PREFIX = "__Host-"
"""Prefix of cookie names over TLS; browsers require Secure, Path=/ and no Domain with it (RFC 6265bis, 4.1.3.2)."""

HEADER = b"x-penstock-ui"

LIFETIME_S = 12 * 3600
"""Lifetime (s) of the session of a credential: a working day."""

CALLER_LIFETIME_S = 3600
"""Lifetime (s) of a session of the identity provider. The page then signs in at the provider again, because the
person's groups or account may have changed."""

PENDING_LIFETIME_S = 600
"""Maximum time (s) of a sign-in at the identity provider."""

MAX_COOKIE_CHARS = 4096 - len(SECURE_PREFIX + COOKIE)
"""Maximum length (characters) of a cookie's value; browsers ignore a cookie whose name and value are longer than 4096
bytes together (RFC 6265bis, 5.6)."""

_NONCE_BYTES = 12
_PURPOSE = b"penstock/ui-session"
_PENDING_PURPOSE = b"penstock/ui-sign-in"

_T = TypeVar("_T")


class BrowserSessions:
    """Seals sessions and pending sign-ins into the values of cookies, and opens them."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        """Derive the key.

        Args:
            secret: a secret that only this control plane has, such as the private key of its certificate.
            clock: Unix time, in seconds.
        """
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, _PURPOSE).derive(secret))
        self._clock = clock

    def seal(self, credential: str) -> str:
        """Return the cookie value of a session with a credential.

        Raises:
            ValueError: the credential is too long for a cookie.
        """
        return self._seal(_PURPOSE, LIFETIME_S, credential)

    def seal_caller(self, caller: Caller) -> str:
        """Return the cookie value of a session of a caller that the identity provider authenticated.

        Raises:
            ValueError: the caller has too many regions for a cookie.
        """
        return self._seal(_PURPOSE, CALLER_LIFETIME_S, caller)

    def seal_pending(self, pending: PendingSignIn) -> str:
        """Return the cookie value of a pending sign-in."""
        return self._seal(_PENDING_PURPOSE, PENDING_LIFETIME_S, pending)

    def open(self, value: str) -> str | Caller | None:
        """Return the credential or caller of a session; None if it has expired or another control plane sealed it."""
        return self._open(_PURPOSE, value, tuple[int, str | Caller])

    def open_pending(self, value: str) -> PendingSignIn | None:
        """Return the pending sign-in of a cookie value; None as for `open`."""
        return self._open(_PENDING_PURPOSE, value, tuple[int, PendingSignIn])

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
    """ASGI middleware that adds the credential or the caller of the session to a request of the page."""

    def __init__(self, app: ASGIApp, sessions: BrowserSessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            scope = self._with_session(scope)
        await self._app(scope, receive, send)

    def _with_session(self, scope: Scope) -> Scope:
        names = {name for name, _ in scope["headers"]}
        if HEADER not in names or b"authorization" in names:
            return scope
        value = cookie(scope, COOKIE)
        session = self._sessions.open(value) if value is not None else None
        if isinstance(session, Caller):
            return {**scope, "state": {**scope.get("state", {}), "caller": session}}
        if session is not None:
            return {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {session}".encode())]}
        return scope


def cookie(scope: Scope, name: str) -> str | None:
    """Return the value of a cookie of a request; None if the request has no such cookie."""
    sent = next((value for header, value in scope["headers"] if header == b"cookie"), None)
    if sent is None:
        return None
    try:
        cookies = SimpleCookie(sent.decode("latin-1"))
    except CookieError:
        return None
    morsel = cookies.get(cookie_name(name, scope["scheme"] == "https"))
    return None if morsel is None else morsel.value


def set_cookie(response: Response, request: Request, name: str, value: str, max_age_s: int, samesite: Any) -> None:
    """Add a cookie to a response; with `max_age_s` 0, the browser deletes the cookie."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        cookie_name(name, secure), value, max_age=max_age_s, path="/", secure=secure, httponly=True, samesite=samesite
    )


def cookie_name(name: str, secure: bool) -> str:
    """Return the name of a cookie: with SECURE_PREFIX over TLS (`secure`), unchanged on loopback without TLS."""
    return f"{SECURE_PREFIX}{name}" if secure else name
