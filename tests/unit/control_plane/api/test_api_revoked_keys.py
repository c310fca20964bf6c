"""Revoked keys over the API: roles, the limits of a request, and what a response shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256

import httpx
import pytest

from control_plane.daemon import ControlPlane
from tests.support.api_app import as_, is_problem, leading_api

DIGEST = sha256(b"demo-eu-personal").hexdigest()
BODY = {"key_digest": DIGEST, "reason": "leaked in a repository"}


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    async with leading_api(control_plane) as client:
        yield client


async def test_a_key_is_revoked_shown_and_lifted_without_its_digest(api: httpx.AsyncClient) -> None:
    revoked = await api.post("/v1/revoked-keys", json=BODY, headers=as_("duty"))
    assert revoked.status_code == 201, revoked.text
    assert revoked.json()["id"] == DIGEST[:16]
    assert revoked.json()["tenant"] is not None
    again = await api.post("/v1/revoked-keys", json=BODY | {"reason": "again"}, headers=as_("duty"))
    assert (again.status_code, again.json()["id"], again.json()["reason"]) == (200, DIGEST[:16], "again")
    listed = await api.get("/v1/revoked-keys", headers=as_("guest"))
    assert listed.json() == {"items": [again.json()], "next_cursor": None}
    assert DIGEST not in listed.text + revoked.text
    explained = {"origin": "eu-de", "model": "llama-3.1-8b", "key_digest": DIGEST}
    assert "the key is revoked" in (await api.post("/v1/explain", json=explained)).text
    lifted = await api.delete(f"/v1/revoked-keys/{DIGEST[:16]}", params={"reason": "a mistake"})
    assert lifted.status_code == 200, lifted.text
    assert (await api.get("/v1/revoked-keys")).json()["items"] == []
    entries = (await api.get("/v1/audit")).json()["items"]
    assert [(entry["action"], entry["caller"]) for entry in entries] == [
        ("key.lift", "admin-token"),
        ("key.revoke", "duty"),
        ("key.revoke", "duty"),
    ]


async def test_roles(api: httpx.AsyncClient) -> None:
    assert is_problem(await api.post("/v1/revoked-keys", json=BODY, headers=as_("guest")), 403)
    assert is_problem(await api.post("/v1/revoked-keys", json=BODY, headers=as_("germany")), 403)
    assert (await api.post("/v1/revoked-keys", json=BODY, headers=as_("duty"))).status_code == 201
    path, reason = f"/v1/revoked-keys/{DIGEST[:16]}", {"reason": "r"}
    assert is_problem(await api.delete(path, params=reason, headers=as_("duty")), 403)
    first, second = [await api.delete(path, params=reason) for _ in range(2)]
    assert (first.status_code, second.status_code, first.json()) == (200, 200, second.json())
    assert is_problem(await api.delete(f"/v1/revoked-keys/{'0' * 16}", params=reason), 404)


@pytest.mark.parametrize(
    "changed",
    [
        {"key_digest": DIGEST.upper()},
        {"key_digest": DIGEST[:63]},
        {"key_digest": "demo-eu-personal"},
        {"key_digest": None},
        {"reason": ""},
        {"reason": "two\nlines"},
        {"reason": "x" * 501},
        {"key": "demo-eu-personal"},
    ],
)
async def test_a_bad_request_is_refused(api: httpx.AsyncClient, changed: dict[str, object]) -> None:
    assert is_problem(await api.post("/v1/revoked-keys", json=BODY | changed), 422)
    assert (await api.get("/v1/revoked-keys")).json()["items"] == []


@pytest.mark.parametrize("id", ["x", DIGEST[:15], DIGEST[:16].upper(), "..%2f" + DIGEST])
async def test_a_bad_id_is_refused(api: httpx.AsyncClient, id: str) -> None:
    response = await api.delete(f"/v1/revoked-keys/{id}", params={"reason": "r"})
    assert response.status_code in (404, 422)
