"""Sessions of browsers: a cookie holds the caller's credential, encrypted, so that scripts of the page never keep it.

The page signs in with the credential in the Authorization header, once, and gets the cookie. Later requests carry the
cookie and the header `x-penstock-ui`, which a page of another origin cannot send without a preflight that is refused;
the cookie is also SameSite=Strict. Both together prevent cross-site request forgery (OWASP, "Cross-Site Request Forgery
Prevention Cheat Sheet": custom request headers).

Nothing is stored: a session survives a restart of the control plane, and ends when the cookie expires, the credential
is revoked, or the key of the control plane's certificate is replaced.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "penstock-session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""The name over TLS: browsers accept it only with Secure, Path=/ and no Domain (RFC 6265bis, section 4.1.3.2)."""

HEADER = b"x-penstock-ui"

LIFETIME_S = 12 * 3600
"""Lifetime (s) of a session: a working day."""

MAX_COOKIE_CHARS = 4096
"""Maximum length of a cookie; browsers keep no longer ones."""

_NONCE_BYTES = 12
_PURPOSE = b"penstock/ui-session"


class BrowserSessions:
    """Seals credentials into cookies, and opens them."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        """Derive the key.

        Args:
            secret: of this control plane alone, such as the private key of its certificate.
            clock: Unix time, in seconds.
        """
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, _PURPOSE).derive(secret))
        self._clock = clock

    def seal(self, credential: str) -> str:
        """The value of the cookie for a credential.

        Raises:
            ValueError: the credential is too long for a cookie.
        """
        nonce = os.urandom(_NONCE_BYTES)
        content = b"%d %b" % (int(self._clock()) + LIFETIME_S, credential.encode())
        value = base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, content, _PURPOSE)).decode()
        if len(value) > MAX_COOKIE_CHARS:
            raise ValueError("the credential is too long for a cookie; sign in with an API key")
        return value

    def open(self, value: str) -> str | None:
        """The credential in a cookie; None if it is not one of this control plane's, or has expired."""
        if len(value) > MAX_COOKIE_CHARS:
            return None
        try:
            sealed = base64.urlsafe_b64decode(value.encode("ascii"))
            content = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _PURPOSE)
        except (binascii.Error, ValueError, InvalidTag):
            return None
        expires_at, _, credential = content.partition(b" ")
        return credential.decode() if self._clock() < int(expires_at) else None

    def credential(self, scope: Scope) -> str | None:
        """The credential of a request of the page; None if it has no valid session."""
        headers = dict(scope["headers"])
        if HEADER not in headers or b"authorization" in headers or b"cookie" not in headers:
            return None
        try:
            cookies = SimpleCookie(headers[b"cookie"].decode("latin-1"))
        except CookieError:
            return None
        morsel = cookies.get(cookie_name(scope["scheme"] == "https"))
        return None if morsel is None else self.open(morsel.value)


class SessionCookies:
    """ASGI middleware that gives a request of the page the Authorization header of its session."""

    def __init__(self, app: ASGIApp, sessions: BrowserSessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            credential = self._sessions.credential(scope)
            if credential is not None:
                scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {credential}".encode())]}
        await self._app(scope, receive, send)


def cookie_name(secure: bool) -> str:
    """The name of the cookie, over TLS or on loopback without."""
    return SECURE_COOKIE if secure else COOKIE
