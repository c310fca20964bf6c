"""An identity provider's endpoints (OpenID Connect Discovery 1.0), and its responses to authorization codes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import structlog

from adapters.loopback import is_protected
from control_plane.auth.bounded_fetch import fetch
from penstock.wire.reserved_addresses import is_reserved

FRESH_S = 3600.0
"""Age (s) at which the provider's configuration is fetched again."""

MIN_INTERVAL_S = 5.0
"""Minimum time (s) between two fetches."""

MAX_URL_CHARS = 2048
MAX_TOKEN_CHARS = 16 * 1024
MAX_REASON_CHARS = 200

CONFIGURATION_PATH = "/.well-known/openid-configuration"

_log = structlog.get_logger(__name__)


class ProviderEndpoints(msgspec.Struct, frozen=True):
    """The endpoints of a provider, and their capabilities."""

    authorization: str
    token: str
    secret_in_body: bool
    """Whether the client's secret is sent in the form, because the provider does not accept HTTP Basic."""
    names_issuer: bool
    """Whether authorization responses name the issuer (RFC 9207)."""


class OidcProvider:
    """The provider's configuration, cached.

    Args:
        issuer: the trusted issuer.
        http: the HTTP client.
        clock: monotonic time (s).
    """

    def __init__(self, issuer: str, http: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self.issuer = issuer
        self._http = http
        self._clock = clock
        self._endpoints: ProviderEndpoints | None = None
        self._problem = "its configuration has not been fetched"
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def endpoints(self) -> ProviderEndpoints:
        """Return the endpoints; if the provider does not respond, the endpoints fetched last.

        Raises:
            ValueError: the configuration has never been fetched; the message has the reason.
        """
        async with self._fetching:
            now = self._clock()
            if now - self._fetched_at >= FRESH_S and now - self._tried_at >= MIN_INTERVAL_S:
                self._tried_at = now
                await self._fetch()
        if self._endpoints is None:
            raise ValueError(self._problem)
        return self._endpoints

    async def _fetch(self) -> None:
        url = self.issuer.rstrip("/") + CONFIGURATION_PATH
        try:
            status, body = await fetch(self._http, url)
            if status != 200:
                raise ValueError(f"HTTP status {status}")
            self._endpoints = read_configuration(body, self.issuer)
        except ValueError as error:
            self._problem = f"{url}: {error}"
            _log.warning("OIDC configuration not fetched", url=url, reason=str(error))
            return
        self._fetched_at = self._clock()


def read_configuration(body: bytes, issuer: str) -> ProviderEndpoints:
    """Return the endpoints of a discovery document.

    Raises:
        ValueError: the document is malformed, of another issuer, or lacks a requirement of the sign-in.
    """
    found = _object(body)
    if found.get("issuer") != issuer:
        raise ValueError("the configuration is of another issuer")
    challenges = found.get("code_challenge_methods_supported", ["S256"])
    if not isinstance(challenges, list) or "S256" not in challenges:
        raise ValueError("the provider does not support PKCE with S256")
    methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    in_body = isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
    names_issuer = found.get("authorization_response_iss_parameter_supported") is True
    authorization, token = _endpoint(found, "authorization_endpoint"), _endpoint(found, "token_endpoint")
    return ProviderEndpoints(authorization, token, in_body, names_issuer)


def read_token_response(status: int, body: bytes) -> str:
    """Return the ID token of a token response; its signature is not verified here.

    Raises:
        ValueError: the response is an error (RFC 6749, 5.2), or has no ID token; the message has the reason.
    """
    try:
        found = _object(body)
    except ValueError:
        raise ValueError(f"the token endpoint returned HTTP status {status} without JSON") from None
    if status != 200 or "error" in found:
        stated = readable(found.get("error")) or f"HTTP status {status}"
        description = readable(found.get("error_description"))
        raise ValueError(f"{stated}: {description}" if description else stated)
    token = found.get("id_token")
    if not isinstance(token, str) or not token or len(token) > MAX_TOKEN_CHARS:
        raise ValueError("the response has no usable ID token; the scope `openid` is required")
    return token


def readable(value: Any) -> str:
    """Return the printable characters among the first MAX_REASON_CHARS of untrusted text; empty for other types."""
    if not isinstance(value, str):
        return ""
    return "".join(character for character in value[:MAX_REASON_CHARS] if character.isprintable())


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("the response is not a JSON object") from None


def _endpoint(found: dict[str, Any], name: str) -> str:
    url = found.get(name)
    if (
        not isinstance(url, str)
        or len(url) > MAX_URL_CHARS
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or not is_protected(url)
        or is_reserved(urlsplit(url).hostname or "")
        or urlsplit(url).fragment
        or "@" in urlsplit(url).netloc
    ):
        raise ValueError(f"{name} is not an https URL of a server")
    return url
