"""Authorisation of routes: the dependencies on roles, and that every route has one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Response

from adapters.access.api_keys import ApiKeys
from adapters.access.login_failures import BURST, REFILL_S
from control_plane import daemon
from control_plane.api import responses
from control_plane.api.app import UnguardedRoute
from control_plane.api.responses import json_response
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import MAX_CREDENTIAL_CHARS, Access
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.daemon import ControlPlane

TOKEN = AdminToken("0123456789abcdef")
KEYS = {"see": "viewer", "do": "operator", "rule": "admin", "de": "operator\n  regions: [eu-de]"}


def keys_file(directory: Path) -> Path:
    path = directory / "keys.yaml"
    path.write_text(
        "".join(
            f"- name: {name}\n  sha256: {sha256(name.encode()).hexdigest()}\n  role: {role}\n"
            for name, role in KEYS.items()
        )
    )
    return path


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.state.access = Access(TOKEN, ApiKeys(keys_file(tmp_path)))
    responses.install_error_handlers(app)

    @app.get("/see")
    async def see(caller: Viewer) -> Response:
        return json_response(caller)

    @app.post("/do/{region}")
    async def do(region: str, caller: Operator) -> Response:
        must_reach(caller, {region})
        return json_response(caller)

    @app.post("/rule")
    async def rule(caller: Admin) -> Response:
        must_reach(caller, None)
        return json_response(caller)

    @app.get("/count")
    async def count(caller: Viewer, number: int) -> Response:
        return json_response(number)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://north") as client:
        yield client


@pytest.mark.parametrize(
    ("key", "statuses"),
    [
        ("see", [200, 403, 403, 403]),
        ("do", [200, 200, 200, 403]),
        ("rule", [200, 200, 200, 200]),
        ("de", [200, 200, 403, 403]),
        ("0123456789abcdef", [200, 200, 200, 200]),
        ("nobody", [401, 401, 401, 401]),
        ("x" * (MAX_CREDENTIAL_CHARS + 1), [401, 401, 401, 401]),
    ],
)
async def test_roles_permit_operations(http: httpx.AsyncClient, key: str, statuses: list[int]) -> None:
    headers = {"authorization": f"Bearer {key}"}
    answers = [
        await http.get("/see", headers=headers),
        await http.post("/do/eu-de", headers=headers),
        await http.post("/do/us-east", headers=headers),
        await http.post("/rule", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == statuses
    for refusal in answers:
        if refusal.status_code >= 400:
            assert refusal.headers["content-type"] == responses.PROBLEM_JSON
            assert key not in refusal.json()["detail"] or key in KEYS


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic see", "see", "Bearer see see"])
async def test_no_valid_credential_is_401(http: httpx.AsyncClient, authorization: str) -> None:
    response = await http.get("/see", headers={"authorization": authorization})
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_a_malformed_request_is_a_problem_that_names_the_field(http: httpx.AsyncClient) -> None:
    response = await http.get("/count", params={"number": "x"}, headers={"authorization": "Bearer see"})
    assert (response.status_code, response.headers["content-type"]) == (422, responses.PROBLEM_JSON)
    assert [error["field"] for error in response.json()["errors"]] == ["query.number"]
    assert (await http.get("/count", params={"number": "x"})).status_code == 401


async def test_an_address_with_too_many_failures_is_blocked_for_a_time(http: httpx.AsyncClient) -> None:
    for _ in range(BURST):
        # A request without a credential is not counted as a failed login.
        assert (await http.get("/see")).status_code == 401
    good, bad = {"authorization": "Bearer see"}, {"authorization": "Bearer nobody"}
    for _ in range(BURST):
        assert (await http.get("/see", headers=bad)).status_code == 401
    for headers in (bad, good, {}):
        refused = await http.get("/see", headers=headers)
        assert (refused.status_code, refused.headers["content-type"]) == (429, responses.PROBLEM_JSON)
        assert 0 < int(refused.headers["retry-after"]) <= REFILL_S
        assert "PENSTOCK_TRUSTED_PROXIES" not in refused.text
    behind_a_proxy = await http.get("/see", headers={**good, "x-forwarded-for": "192.0.2.9"})
    assert "if it is a proxy, name it in PENSTOCK_TRUSTED_PROXIES" in behind_a_proxy.json()["detail"]


async def test_a_route_without_a_required_role_stops_the_start(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = APIRouter()

    @router.get("/v1/secrets")
    async def secrets() -> Response:
        return json_response("everything")

    monkeypatch.setattr(daemon.status_routes, "routes", lambda *_: router)
    with pytest.raises(UnguardedRoute, match="/v1/secrets"):
        control_plane.create_api(Access(TOKEN))
