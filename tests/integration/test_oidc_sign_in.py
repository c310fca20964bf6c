"""Sign-in at an identity provider, over real HTTP: which sign-ins create a session, and which fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response

from adapters.access.callers import Caller, Role
from adapters.access.login_failures import BURST, LoginFailures
from control_plane.api.responses import install_error_handlers, json_response
from control_plane.audit.audit_log import AuditLog
from control_plane.auth import bounded_fetch
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.auth.bounded_fetch import MAX_RESPONSE_BYTES
from control_plane.auth.code_flow import MAX_EXCHANGES, CodeFlow, OidcClient
from control_plane.auth.jwks import Jwks
from control_plane.auth.oidc import Oidc, OidcTrust
from control_plane.auth.oidc_provider import FRESH_S, MIN_INTERVAL_S, OidcProvider
from control_plane.auth.required_roles import Viewer
from control_plane.ui import sign_in_routes, ui_routes
from control_plane.ui.browser_sessions import (
    CALLER_LIFETIME_S,
    PENDING_LIFETIME_S,
    BrowserSessions,
    SessionCookies,
)
from control_plane.ui.session_revocations import SessionRevocations
from lab.memory_store import MemoryStore
from tests.support.clocks import SetClock
from tests.support.identity_provider import CLIENT_ID, IdentityProvider, choose, query_of
from tests.support.issuer import AUDIENCE, rsa_key
from tests.support.wait import PATIENCE_S, until

KEY = rsa_key()
OTHER = rsa_key()
ROLES = {"sre": Role.OPERATOR, "scrapers": Role.MONITOR}
REDIRECT = "http://page/ui/signed-in"
PAGE = {"x-penstock-ui": "1"}
SECRET = "100%25 a secret"


class Party:
    """The sign-in routes of a control plane, and a browser that uses them."""

    def __init__(self, provider: IdentityProvider, secret: str | None = None) -> None:
        self.provider = provider
        self.clock = SetClock()
        self.clock.now = 1_000_000.0
        self.outgoing = httpx.AsyncClient(timeout=PATIENCE_S)
        trust = OidcTrust(provider.url, AUDIENCE, ROLES, regions_claim="regions")
        oidc = Oidc(trust, Jwks(provider.jwks_url, self.outgoing, self.clock))
        self.flow = CodeFlow(
            OidcClient(CLIENT_ID, REDIRECT, secret, ("openid", "groups")),
            OidcProvider(provider.url, self.outgoing, self.clock),
            oidc.for_audience(CLIENT_ID),
            self.outgoing,
        )
        self.access = Access(AdminToken("0123456789abcdef"), oidc=oidc)
        self.access.failures = LoginFailures(self.clock)
        sessions = BrowserSessions(b"private key of a control plane", self.clock)
        store = MemoryStore()
        self.revocations = SessionRevocations(store, AuditLog(store), rng=Random(), clock=self.clock)
        self.app = app = FastAPI()
        app.state.access = self.access
        install_error_handlers(app)

        @app.get("/v1/whoami")
        async def whoami(caller: Viewer) -> Response:
            return json_response(caller)

        app.include_router(sign_in_routes.routes(self.flow, sessions))
        app.include_router(ui_routes.public_routes(self.flow.name))
        app.include_router(ui_routes.session_routes(sessions, self.revocations))
        app.add_middleware(SessionCookies, sessions=sessions, is_revoked=self.revocations.is_revoked)
        self.browser = self.new_browser()

    def new_browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://page")

    async def begin(self) -> str:
        """The provider's address to which the page sends the browser."""
        left = await self.browser.get("/ui/sign-in")
        assert left.status_code == 303, left.text
        return left.headers["location"]

    async def sign_in(self, link: str = "accept") -> httpx.Response:
        return await self.browser.get(await choose(self.outgoing, await self.begin(), link))

    async def refusal(self, status: int, **parameters: str) -> str:
        """The text of the page after a sign-in that fails."""
        if parameters:
            returned = httpx.URL(await choose(self.outgoing, await self.begin()))
            answer = await self.browser.get(returned.copy_merge_params(parameters))
        else:
            answer = await self.sign_in()
        assert answer.status_code == status, answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert (await self.whoami()).status_code in (401, 429)
        return answer.text.partition('role="alert">')[2].partition("</p>")[0]

    async def whoami(self) -> httpx.Response:
        return await self.browser.get("/v1/whoami", headers=PAGE)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limit of requests, for busy machines."""
    monkeypatch.setattr(bounded_fetch, "FETCH_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    provider = IdentityProvider(one=KEY)
    async with provider.http:
        yield provider


@pytest.fixture
async def party(provider: IdentityProvider) -> AsyncIterator[Party]:
    party = Party(provider)
    yield party
    await party.browser.aclose()
    await party.outgoing.aclose()


async def test_a_person_signs_in_at_the_provider_and_gets_a_session(party: Party, provider: IdentityProvider) -> None:
    provider.claims = {"regions": ["eu-de"]}
    assert f'content="127.0.0.1:{provider.http.port}"' in (await party.browser.get("/ui/")).text
    url = await party.begin()
    asked = query_of(url)
    assert asked["prompt"] == "login", "the query of the provider's own address is lost"
    assert (asked["redirect_uri"], asked["scope"]) == (REDIRECT, "openid groups")
    assert asked["state"] != asked["nonce"]
    returned = await party.browser.get(await choose(party.outgoing, url))
    assert (returned.status_code, returned.headers["location"]) == (303, "./")
    whoami = (await party.whoami()).json()
    assert (whoami["name"], whoami["role"], whoami["regions"]) == ("oidc:ada", "operator", ["eu-de"])
    verifier = provider.token_requests[0]["code_verifier"]
    assert len(verifier) >= 43
    assert verifier not in url
    # A page of another origin cannot send the header.
    assert (await party.browser.get("/v1/whoami")).status_code == 401
    jar = dict(party.browser.cookies)
    assert (await party.browser.delete("/v1/session", headers=PAGE)).status_code == 204
    assert (await party.whoami()).status_code == 401
    party.browser.cookies.update(jar)
    assert (await party.whoami()).status_code == 401, "a copy of the cookie does not count"


async def test_the_pending_cookie_is_lax_and_the_session_is_strict(party: Party) -> None:
    left = await party.browser.get("/ui/sign-in")
    assert "samesite=lax" in left.headers["set-cookie"].lower()
    returned = await party.browser.get(await choose(party.outgoing, left.headers["location"]))
    session, pending = returned.headers.get_list("set-cookie")
    assert "samesite=strict" in session.lower()
    assert f"Max-Age={CALLER_LIFETIME_S}" in session
    assert "Max-Age=0" in pending
    for cookie in (session, pending, left.headers["set-cookie"]):
        assert "httponly" in cookie.lower()
        assert "ada" not in cookie
    assert left.headers["cache-control"] == returned.headers["cache-control"] == "no-store"


async def test_a_session_of_the_provider_ends_with_its_time(party: Party) -> None:
    await party.sign_in()
    party.clock.now += CALLER_LIFETIME_S - 1
    assert (await party.whoami()).status_code == 200
    party.clock.now += 1
    assert (await party.whoami()).status_code == 401


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_with_a_secret_sends_it_as_the_provider_asks(provider: IdentityProvider, method: str) -> None:
    provider.secret = SECRET
    provider.configuration = {"token_endpoint_auth_methods_supported": [method]}
    for secret, status in ((SECRET, 303), ("another secret", 403), (None, 403)):
        party = Party(provider, secret)
        assert (await party.sign_in()).status_code == status
        await party.browser.aclose()
        await party.outgoing.aclose()
    assert ("client_secret" in provider.token_requests[0]) == (method == "client_secret_post")


async def test_a_sign_in_completes_once_in_time_and_in_its_own_browser(
    party: Party, provider: IdentityProvider
) -> None:
    returned = await choose(party.outgoing, await party.begin())
    jar = dict(party.browser.cookies)
    other_browser = party.new_browser()
    assert "No sign-in of this browser is pending" in (await other_browser.get(returned)).text
    await other_browser.get("/ui/sign-in")
    assert "belongs to another sign-in" in (await other_browser.get(returned)).text
    assert not provider.token_requests
    assert (await party.browser.get(returned)).status_code == 303
    party.browser.cookies.update(jar)
    assert "completed before" in (await party.browser.get(returned)).text
    late = await choose(party.outgoing, await party.begin())
    party.clock.now += PENDING_LIFETIME_S
    assert "No sign-in of this browser is pending" in (await party.browser.get(late)).text
    assert len(provider.token_requests) == 1
    await other_browser.aclose()


@pytest.mark.parametrize(
    ("parameters", "status", "reason"),
    [
        ({"state": "another"}, 400, "belongs to another sign-in"),
        ({"state": "\u00e9"}, 400, "belongs to another sign-in"),
        ({"code": ""}, 400, "no usable code"),
        ({"code": "x" * 5000}, 400, "no usable code"),
        ({"code": "another"}, 403, "invalid_grant: the code is not valid"),
        ({"iss": "https://elsewhere"}, 400, "of another identity provider"),
        ({"error": "server_error"}, 403, "refused the sign-in: server_error."),
        ({"error": "\n\x00"}, 403, "refused the sign-in: without a reason"),
    ],
)
async def test_an_invalid_callback_is_refused(
    party: Party, parameters: dict[str, str], status: int, reason: str
) -> None:
    assert reason in await party.refusal(status, **parameters)


async def test_a_repeated_parameter_is_refused(party: Party) -> None:
    returned = await choose(party.outgoing, await party.begin())
    assert "a parameter twice" in (await party.browser.get(f"{returned}&code=another")).text


async def test_the_issuer_parameter_is_required_if_announced(party: Party, provider: IdentityProvider) -> None:
    provider.configuration = {"authorization_response_iss_parameter_supported": True}
    assert "of another identity provider" in await party.refusal(400)
    returned = httpx.URL(await choose(party.outgoing, await party.begin()))
    assert (await party.browser.get(returned.copy_merge_params({"iss": provider.url}))).status_code == 303


async def test_an_error_of_the_provider_is_shown_as_text(party: Party) -> None:
    refused = await party.sign_in("refuse")
    assert refused.status_code == 403
    assert "access_denied: &lt;b&gt;not today&lt;/b&gt;." in refused.text


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "another"}, "issued for another sign-in"),
        ({"nonce": None}, "issued for another sign-in"),
        ({"azp": "another client"}, "issued for another sign-in"),
        ({"aud": AUDIENCE}, "not for this audience"),
        ({"iss": "https://elsewhere"}, "another issuer"),
        ({"exp": 1}, "has expired"),
        ({"groups": ["guests"]}, "gives a role"),
        ({"groups": ["scrapers"]}, "oidc:ada has the role monitor; the page requires viewer"),
        ({"regions": [f"region-{number}" for number in range(500)]}, "too long for a cookie"),
    ],
)
async def test_an_invalid_id_token_creates_no_session(
    party: Party, provider: IdentityProvider, claims: dict[str, Any], reason: str
) -> None:
    provider.claims = claims
    assert reason in await party.refusal(403)


async def test_a_foreign_signature_is_rejected(party: Party, provider: IdentityProvider) -> None:
    provider.private = {"one": OTHER}
    assert "signature does not verify" in await party.refusal(403)


@pytest.mark.parametrize(
    ("status", "body", "expected", "reason"),
    [
        (500, b"<html>", 502, "HTTP status 500 without JSON"),
        (200, b"\xff", 403, "HTTP status 200 without JSON"),
        (200, b"[]", 403, "without JSON"),
        (200, b"{}", 403, "no usable ID token"),
        (200, b'{"id_token": 7}', 403, "no usable ID token"),
        (200, json.dumps({"id_token": "x" * 20_000}).encode(), 403, "no usable ID token"),
        (200, b'{"id_token": "a.b.c"}', 403, "malformed"),
        (400, json.dumps({"error": "<i>" * 500}).encode(), 403, "&lt;i&gt;"),
        (200, b" " * (MAX_RESPONSE_BYTES + 1), 502, "larger than"),
    ],
)
async def test_any_response_of_the_token_endpoint_is_handled(
    party: Party, provider: IdentityProvider, status: int, body: bytes, expected: int, reason: str
) -> None:
    provider.token_answer = (status, body)
    text = await party.refusal(expected)
    assert reason in text
    assert len(text) < 2000


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"issuer": "https://elsewhere"}, "of another issuer"),
        ({"authorization_endpoint": None}, "authorization_endpoint is not an https URL"),
        ({"authorization_endpoint": "http://elsewhere/authorize"}, "authorization_endpoint is not an https URL"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is not an https URL"),
        ({"authorization_endpoint": "https://a/\r\nset-cookie: b=c"}, "authorization_endpoint is not an https URL"),
        ({"token_endpoint": "https://user@elsewhere/"}, "token_endpoint is not an https URL"),
        ({"token_endpoint": "https://[::ffff:169.254.169.254]/"}, "token_endpoint is not an https URL"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not support PKCE with S256"),
    ],
)
async def test_an_invalid_discovery_document_is_refused(
    party: Party, provider: IdentityProvider, members: dict[str, Any], reason: str
) -> None:
    provider.configuration = members
    refused = await party.browser.get("/ui/sign-in")
    assert refused.status_code == 502
    assert reason in refused.text


async def test_an_unavailable_provider_is_retried_and_its_configuration_kept(
    party: Party, provider: IdentityProvider
) -> None:
    provider.answer = (503, b"")
    for _ in range(5):
        assert "HTTP status 503" in (await party.browser.get("/ui/sign-in")).text
    assert provider.http.requests == 1
    provider.answer = None
    party.clock.now += MIN_INTERVAL_S
    assert (await party.sign_in()).status_code == 303
    provider.answer = (503, b"")
    party.clock.now += FRESH_S
    assert (await party.browser.get("/ui/sign-in")).status_code == 303


async def test_codes_that_are_refused_count_as_failed_logins(party: Party, provider: IdentityProvider) -> None:
    for _ in range(BURST):
        await party.refusal(403, code="guessed")
    assert "Too many failed logins" in await party.refusal(429, code="guessed")
    assert len(provider.token_requests) == BURST


async def test_concurrent_code_exchanges_are_limited(party: Party, provider: IdentityProvider) -> None:
    returned = []
    for _ in range(MAX_EXCHANGES + 1):
        browser = party.new_browser()
        url = (await browser.get("/ui/sign-in")).headers["location"]
        returned.append((browser, await choose(party.outgoing, url)))
    last, address = returned.pop()
    provider.http.silent = True
    before = provider.http.requests
    waiting = [asyncio.create_task(browser.get(url)) for browser, url in returned]
    await until(lambda: provider.http.requests == before + MAX_EXCHANGES)
    refused = await last.get(address)
    assert refused.status_code == 503
    assert "Too many sign-ins at a time" in refused.text
    await provider.http.stop()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {502}
    for browser in (last, *(browser for browser, _ in returned)):
        await browser.aclose()


def test_a_caller_survives_its_session() -> None:
    clock = SetClock()
    sessions = BrowserSessions(b"secret", clock)
    caller = Caller("oidc:ada", Role.ADMIN, frozenset({"eu-de"}))
    session = sessions.open(sessions.seal_caller(caller))
    assert session is not None
    assert (session.content, session.caller) == (caller, caller.name)
    pending = sessions.open_pending(sessions.seal_caller(caller))
    assert pending is None, "a session is no pending sign-in"
