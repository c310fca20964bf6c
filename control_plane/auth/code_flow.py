"""Sign-in at the identity provider: authorization code flow with PKCE (OpenID Connect Core 3.1, RFC 7636, RFC 9700)."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec

from adapters.access.callers import Caller, Role
from control_plane.auth.bounded_fetch import fetch
from control_plane.auth.oidc import BadToken, Oidc
from control_plane.auth.oidc_provider import OidcProvider, read_token_response, readable

MAX_EXCHANGES = 16
"""Maximum number of concurrent code exchanges; further sign-ins are refused."""

MAX_USED = 10_000
"""Maximum number of used states that are remembered to refuse their reuse. A provider also accepts a code only once."""

MAX_CODE_CHARS = 4096

_BEGIN_AGAIN = "Begin again."


class OidcClient(msgspec.Struct, frozen=True):
    """The operators' page as a client of the identity provider."""

    client_id: str
    redirect_url: str
    """URL to which the provider redirects the browser, as registered at the provider."""
    secret: str | None = None
    """Secret of a confidential client; None: a public client, for which only PKCE binds the code."""
    scopes: tuple[str, ...] = ("openid",)


class PendingSignIn(msgspec.Struct, frozen=True):
    """A sign-in in progress, which the browser stores in an encrypted cookie. The server stores no pending sign-ins, so
    unauthenticated clients cannot exhaust its memory."""

    state: str
    nonce: str
    verifier: str


class SignInFailed(Exception):
    """The sign-in failed; the message is for the person who signs in.

    Args:
        message: the reason and the remedy.
        status: the HTTP status.
        is_suspicious: whether the failure counts as a failed login of the client's address.
    """

    def __init__(self, message: str, status: int = 400, *, is_suspicious: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_suspicious = is_suspicious


class CodeFlow:
    """Begins sign-ins, and authenticates callers by the authorization responses of the provider.

    Args:
        client: the page as a client of the provider.
        provider: the provider's endpoints.
        tokens: verifies ID tokens, with the client's id as audience.
        http: the HTTP client.
    """

    def __init__(self, client: OidcClient, provider: OidcProvider, tokens: Oidc, http: httpx.AsyncClient) -> None:
        self._client = client
        self._provider = provider
        self._tokens = tokens
        self._http = http
        self._exchanging = 0
        self._used: OrderedDict[str, None] = OrderedDict()

    @property
    def name(self) -> str:
        """Host of the issuer, the displayed name of the provider."""
        return urlsplit(self._provider.issuer).netloc

    async def begin(self) -> tuple[PendingSignIn, str]:
        """Return a new sign-in, and the URL to which the browser goes.

        Raises:
            SignInFailed: the provider's configuration is unknown.
        """
        try:
            endpoints = await self._provider.endpoints()
        except ValueError as error:
            raise SignInFailed(f"The identity provider cannot be used now: {error}.", 502) from None
        pending = PendingSignIn(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48))
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._client.client_id,
                "redirect_uri": self._client.redirect_url,
                "scope": " ".join(self._client.scopes),
                "state": pending.state,
                "nonce": pending.nonce,
                "code_challenge": challenge(pending.verifier),
                "code_challenge_method": "S256",
            }
        )
        separator = "&" if urlsplit(endpoints.authorization).query else "?"
        return pending, f"{endpoints.authorization}{separator}{query}"

    async def finish(self, pending: PendingSignIn | None, answer: Mapping[str, str]) -> Caller:
        """Return the caller that the provider authenticated.

        Args:
            pending: the pending sign-in of this browser; None: there is none, or it has expired.
            answer: parameters of the authorization response.

        Raises:
            SignInFailed: the response does not belong to the sign-in, is an error, or gives no role.
        """
        if pending is None:
            raise SignInFailed(f"No sign-in of this browser is pending, or it has expired. {_BEGIN_AGAIN}")
        if not hmac.compare_digest(answer.get("state", "").encode("utf-8", "replace"), pending.state.encode()):
            raise SignInFailed(f"The answer belongs to another sign-in. {_BEGIN_AGAIN}")
        self._use(pending.state)
        if "error" in answer:
            stated = ": ".join(filter(None, (readable(answer["error"]), readable(answer.get("error_description")))))
            raise SignInFailed(f"The identity provider refused the sign-in: {stated or 'without a reason'}.", 403)
        code = answer.get("code", "")
        if not code or len(code) > MAX_CODE_CHARS:
            raise SignInFailed(f"The answer of the identity provider has no usable code. {_BEGIN_AGAIN}")
        if self._exchanging >= MAX_EXCHANGES:
            raise SignInFailed("Too many sign-ins at a time. Begin again in some seconds.", 503)
        self._exchanging += 1
        try:
            token = await self._exchange(code, pending.verifier, answer.get("iss"))
        finally:
            self._exchanging -= 1
        try:
            caller = await self._tokens.caller(token, pending.nonce)
        except BadToken as error:
            raise SignInFailed(
                f"The identity provider's answer is rejected: {error}.", 403, is_suspicious=True
            ) from None
        if not caller.role.covers(Role.VIEWER):
            raise SignInFailed(f"{caller.name} has the role {caller.role.value}; the page requires viewer.", 403)
        return caller

    def _use(self, state: str) -> None:
        if state in self._used:
            raise SignInFailed(f"This sign-in was completed before. {_BEGIN_AGAIN}")
        self._used[state] = None
        if len(self._used) > MAX_USED:
            self._used.popitem(last=False)

    async def _exchange(self, code: str, verifier: str, issuer: str | None) -> str:
        """Return the ID token for a code."""
        client = self._client
        try:
            endpoints = await self._provider.endpoints()
        except ValueError as error:
            raise SignInFailed(f"The identity provider cannot be used now: {error}.", 502) from None
        # RFC 9207: a code of another provider must not be sent to this one.
        if issuer != self._provider.issuer and (issuer is not None or endpoints.names_issuer):
            raise SignInFailed(f"The answer is of another identity provider. {_BEGIN_AGAIN}", is_suspicious=True)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": client.redirect_url,
            "code_verifier": verifier,
        }
        auth = None
        if client.secret is None or endpoints.secret_in_body:
            form["client_id"] = client.client_id
        if client.secret is not None and endpoints.secret_in_body:
            form["client_secret"] = client.secret
        elif client.secret is not None:
            # RFC 6749, 2.3.1: client id and secret are form-encoded before they are joined.
            auth = httpx.BasicAuth(quote(client.client_id, safe=""), quote(client.secret, safe=""))
        try:
            status, body = await fetch(self._http, endpoints.token, form, auth)
        except ValueError as error:
            raise SignInFailed(f"The identity provider's token endpoint failed: {error}. {_BEGIN_AGAIN}", 502) from None
        try:
            return read_token_response(status, body)
        except ValueError as error:
            is_refused = status < 500
            raise SignInFailed(
                f"The identity provider did not accept the code: {error}. {_BEGIN_AGAIN}",
                403 if is_refused else 502,
                is_suspicious=is_refused,
            ) from None


def challenge(verifier: str) -> str:
    """Return the code challenge of a verifier by S256 (RFC 7636, 4.2)."""
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
