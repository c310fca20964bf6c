"""An identity provider with a sign-in page: discovery, authorization endpoint, and token endpoint with PKCE."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, urlsafe_b64encode
from hashlib import sha256
from html import escape, unescape
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx

from tests.support.issuer import Issuer, PrivateKey
from tests.support.small_http import Headers

CLIENT_ID = "penstock page"
"""Client id with a space, which must be encoded in HTTP Basic."""


class IdentityProvider(Issuer):
    """An issuer with the endpoints of the authorization code flow. Attributes may be changed between requests."""

    def __init__(self, host: str = "127.0.0.1", client_id: str = CLIENT_ID, **keys: PrivateKey) -> None:
        super().__init__(**keys)
        self.host = host
        self.client_id = client_id
        self.secret: str | None = None
        """Secret of the client; None for a public client."""
        self.configuration: dict[str, Any] = {}
        """Replaced members of the discovery document; None removes a member."""
        self.claims: dict[str, Any] = {}
        """Replaced claims of ID tokens."""
        self.token_answer: tuple[int, bytes] | None = None
        """Response that replaces every response of the token endpoint."""
        self.token_requests: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http.port}"

    def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        path, _, query = target.decode().partition("?")
        if self.answer is None and path == "/.well-known/openid-configuration":
            return 200, json.dumps(self._configuration()).encode()
        if path == "/authorize":
            return self._authorize(_fields(query))
        if path == "/token":
            return self._token(_fields(body.decode()), dict(headers).get(b"authorization", b"").decode())
        return super()._answer(method, target, headers, body)

    def _configuration(self) -> dict[str, Any]:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?prompt=login",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": self.jwks_url,
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            **self.configuration,
        }
        return {name: value for name, value in document.items() if value is not None}

    def _authorize(self, asked: dict[str, str]) -> tuple[int, bytes]:
        expected = {"response_type": "code", "client_id": self.client_id, "code_challenge_method": "S256"}
        wrong = [name for name, value in expected.items() if asked.get(name) != value]
        if wrong or "openid" not in asked.get("scope", "").split():
            return 400, f"wrong: {wrong}".encode()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        accept = urlencode({"code": code, "state": asked["state"]})
        refuse = urlencode({"error": "access_denied", "error_description": "<b>not today</b>", "state": asked["state"]})
        links = [
            f'<a id="{name}" href="{escape(asked["redirect_uri"])}?{escape(answer)}">{name}</a>'
            for name, answer in (("accept", accept), ("refuse", refuse))
        ]
        return 200, f"<!doctype html><title>Identity provider</title>{' '.join(links)}".encode()

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, bytes]:
        self.token_requests.append(form)
        if self.token_answer is not None:
            return self.token_answer
        asked = self._codes.pop(form.get("code", ""), None)
        if not self._is_client(form, authorization):
            return 401, b'{"error": "invalid_client"}'
        digest = sha256(form.get("code_verifier", "").encode()).digest()
        if (
            asked is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != asked["redirect_uri"]
            or urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return 400, b'{"error": "invalid_grant", "error_description": "the code is not valid"}'
        token = self.token(next(iter(self.private)), **{"aud": self.client_id, "nonce": asked["nonce"], **self.claims})
        return 200, json.dumps({"access_token": "opaque", "token_type": "Bearer", "id_token": token}).encode()

    def _is_client(self, form: dict[str, str], authorization: str) -> bool:
        if self.secret is None:
            return form.get("client_id") == self.client_id
        if "client_secret" in form:
            return (form.get("client_id"), form["client_secret"]) == (self.client_id, self.secret)
        sent = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return (unquote(sent[0]), unquote(sent[2])) == (self.client_id, self.secret)


async def choose(http: httpx.AsyncClient, authorize_url: str, link: str = "accept") -> str:
    """Return the URL of a link on the provider's page, as followed by a browser."""
    page = await http.get(authorize_url)
    assert page.status_code == 200, page.text
    return unescape(page.text.partition(f'<a id="{link}" href="')[2].partition('"')[0])


def _fields(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def query_of(url: str) -> dict[str, str]:
    """The parameters of a URL."""
    return _fields(urlsplit(url).query)
