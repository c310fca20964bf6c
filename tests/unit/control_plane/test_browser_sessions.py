"""The page's files, and sessions of browsers: which roles a cookie grants, and to whom."""

from __future__ import annotations

import re
from contextlib import suppress

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from control_plane.ui.browser_sessions import (
    COOKIE,
    LIFETIME_S,
    MAX_COOKIES_BYTES,
    SECURE_PREFIX,
    BrowserSessions,
    SessionCookies,
)
from control_plane.ui.ui_routes import public_routes
from tests.support.clocks import SetClock

SECRET = b"private key of a control plane"


def authorization(request: Request) -> Response:
    assert set(request.cookies) <= {COOKIE, SECURE_PREFIX + COOKIE}
    return PlainTextResponse(request.headers.get("authorization", "none"))


REVOKED = {"eve": True, "early": None}


@pytest.fixture
def sessions() -> BrowserSessions:
    return BrowserSessions(SECRET)


@pytest.fixture
def app(sessions: BrowserSessions) -> FastAPI:
    app = FastAPI()
    app.add_route("/v1/status", authorization)
    app.include_router(public_routes())
    app.add_middleware(SessionCookies, sessions=sessions, is_revoked=lambda session: REVOKED.get(session.caller, False))
    return app


def client(app: FastAPI, scheme: str = "http") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"{scheme}://control-plane")


async def test_a_cookie_gives_its_credential_to_requests_of_the_page_alone(
    app: FastAPI, sessions: BrowserSessions
) -> None:
    value = sessions.seal("a-key", "ada")
    assert "a-key" not in value
    page = {"x-penstock-ui": "1"}
    for headers, expected in (
        ({**page, "cookie": f"{COOKIE}={value}"}, "Bearer a-key"),
        ({"cookie": f"{COOKIE}={value}"}, "none"),
        (page, "none"),
        ({**page, "cookie": f"{COOKIE}={value[:-4]}AAAA"}, "none"),
        ({**page, "cookie": f"{COOKIE}=not base64 !"}, "none"),
        ({**page, "cookie": f"{SECURE_PREFIX}{COOKIE}={value}"}, "none"),
        ({**page, "cookie": f"{COOKIE}={value}", "authorization": "Bearer other"}, "Bearer other"),
        ({**page, "cookie": f"{COOKIE}={sessions.seal('a-key', 'eve')}"}, "none"),
        ({**page, "cookie": f'a="\\073; {COOKIE}="{value}"; b'}, "Bearer a-key"),
        ({**page, "cookie": f"{COOKIE}={value}; a={'x' * MAX_COOKIES_BYTES}"}, "none"),
    ):
        async with client(app) as http:
            assert (await http.get("/v1/status", headers=headers)).text == expected, headers


async def test_a_session_waits_until_the_revocations_are_read(app: FastAPI, sessions: BrowserSessions) -> None:
    cookies = {"cookie": f"{COOKIE}={sessions.seal('a-key', 'early')}"}
    async with client(app) as http:
        refused = await http.get("/v1/status", headers={"x-penstock-ui": "1", **cookies})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert "sign in again" in refused.json()["detail"]
        assert (await http.get("/v1/status", headers=cookies)).text == "none"


async def test_over_tls_only_the_cookie_with_the_host_prefix_counts(app: FastAPI, sessions: BrowserSessions) -> None:
    value = sessions.seal("a-key", "ada")
    for name, expected in ((SECURE_PREFIX + COOKIE, "Bearer a-key"), (COOKIE, "none")):
        headers = {"x-penstock-ui": "1", "cookie": f"{name}={value}"}
        async with client(app, "https") as http:
            assert (await http.get("/v1/status", headers=headers)).text == expected


def test_sessions_end_with_time_and_with_the_secret_and_survive_a_restart() -> None:
    clock = SetClock(1_000_000.0)
    value = BrowserSessions(SECRET, clock).seal("a-key", "ada")
    session = BrowserSessions(SECRET, clock).open(value)
    assert session is not None
    assert (session.caller, session.content, session.began_at) == ("ada", "a-key", clock.now)
    assert BrowserSessions(b"another", clock).open(value) is None
    assert BrowserSessions(SECRET, clock, fleet="penstock/staging/").open(value) is None
    clock.now += LIFETIME_S + 1
    assert BrowserSessions(SECRET, clock).open(value) is None
    with pytest.raises(ValueError, match="sign in with an API key"):
        BrowserSessions(SECRET).seal("x" * 4000, "ada")


def test_no_cookie_is_longer_than_browsers_accept(sessions: BrowserSessions) -> None:
    """Browsers ignore a cookie whose name and value together have more than 4096 bytes (RFC 6265bis, 5.6)."""
    lengths = []
    for length in range(2800, 3100):
        with suppress(ValueError):
            lengths.append(len(SECURE_PREFIX + COOKIE) + len(sessions.seal("x" * length, "ada")))
    assert 4090 <= max(lengths) <= 4096


async def test_the_page_loads_nothing_from_other_origins(app: FastAPI) -> None:
    http = client(app)
    assert (await http.get("/ui")).headers["location"] == "/ui/"
    index = await http.get("/ui/")
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    seen, waiting, size = set(), {"index.html"}, 0
    while waiting:
        name = waiting.pop()
        seen.add(name)
        answer = await http.get(f"/ui/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == policy
        size += len(answer.content)
        # The SVG namespace is a name, from which nothing is loaded.
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert not re.search(r"innerHTML|insertAdjacentHTML|outerHTML|document\.write|\beval\(|style=", text), name
        names = re.findall(r'(?:src|href)="([\w.]+)"|from "\./([\w.]+)"', text)
        waiting |= {first or second for first, second in names} - seen
    assert {"main.js", "map.js", "style.css", "icon.svg", "land.js"} <= seen
    assert size < 300_000
    assert (await http.get("/ui/", headers={"if-none-match": index.headers["etag"]})).status_code == 304
    assert (await http.get("/ui/none.js")).status_code == 404
    assert (await http.get("/ui/..%2fbrowser_sessions.py")).status_code == 404
    await http.aclose()
