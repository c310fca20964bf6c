"""Dry runs over the API: a change is checked and described as when it is made, and nothing is written."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import httpx
import pytest

from penstock.fleet import snapshot
from tests.support.api_app import as_
from tests.unit.control_plane.api.test_api_tenants import ANY, api, control_plane, policies

__all__ = ["api", "control_plane", "policies"]

DRY = {"dry_run": "true"}
DIGEST = sha256(b"a key").hexdigest()
WHY = {"reason": "a test"}
CHANGES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("PUT", "/v1/overrides/one", {"kind": "drain", "region": "eu-de", **WHY}),
    ("DELETE", "/v1/overrides/one?reason=done", None),
    ("POST", "/v1/overrides", {"kind": "freeze", **WHY}),
    ("POST", "/v1/regions/jp-tok/drain", WHY),
    ("POST", "/v1/regions/jp-tok/undrain", WHY),
    ("PUT", "/v1/tenants/acme", {"tier": "gold"}),
    ("PATCH", "/v1/tenants/acme", {"note": "a team"}),
    ("POST", "/v1/tenants/acme/keys", {}),
    ("POST", "/v1/tenants/acme/suspend", WHY),
    ("POST", "/v1/tenants/acme/resume", WHY),
    ("DELETE", "/v1/tenants/acme?reason=left", None),
    ("POST", "/v1/revoked-keys", {"key_digest": DIGEST, **WHY}),
    ("DELETE", f"/v1/revoked-keys/{DIGEST[:12]}?reason=found", None),
    ("POST", "/v1/rollouts/current/halt", WHY),
]
"""Changes in an order in which each is possible, or is refused for its own reason."""


async def entries(api: httpx.AsyncClient) -> int:
    return len((await api.get("/v1/audit")).json()["items"])


async def test_a_dry_run_of_each_change_answers_like_the_change_and_writes_nothing(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The leader has led long enough to treat regions without reports as silent.
    monkeypatch.setattr(snapshot, "SETTLE_S", 0.0)
    for method, path, body in CHANGES:
        headers, before = ANY if "override" in path or "tenants" in path else {}, await entries(api)
        given = {"json": body} if body is not None else {}
        target = httpx.URL(path)
        shown = await api.request(method, target.copy_merge_params(DRY), headers=headers, **given)
        assert await entries(api) == before, f"{method} {path}"
        made = await api.request(method, target, headers=headers, **given)
        assert shown.status_code == made.status_code, f"{method} {path}: {shown.text}"
        assert shown.json().keys() == made.json().keys(), f"{method} {path}"
        assert await entries(api) == before + (made.status_code < 400), f"{method} {path}: {made.text}"


async def test_a_dry_run_is_refused_as_the_change_would_be(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "SETTLE_S", 0.0)
    drain = {"kind": "drain", **WHY}
    assert (await api.put("/v1/overrides/a", json=drain | {"region": "eu-de"})).status_code == 201
    refused = await api.put("/v1/overrides/b", params=DRY, json=drain | {"region": "eu-es"})
    assert (refused.status_code, refused.json()["guard"]) == (409, True)
    guest = await api.put("/v1/overrides/b", params=DRY, json=drain | {"region": "eu-es"}, headers=as_("guest"))
    assert guest.status_code == 403
    stale = await api.delete("/v1/overrides/a", params={**DRY, **WHY}, headers={"if-match": '"other"'})
    assert stale.status_code == 412


async def test_a_dry_run_of_a_key_returns_no_key(api: httpx.AsyncClient) -> None:
    await api.put("/v1/tenants/acme", json={"tier": "gold"})
    shown = await api.post("/v1/tenants/acme/keys", params=DRY, json={})
    assert (shown.status_code, shown.json()["key"]) == (201, "")
    assert (await api.get("/v1/tenants/acme/keys")).json()["items"] == []


async def test_only_changes_may_be_dry_runs(api: httpx.AsyncClient) -> None:
    paths = (await api.get("/openapi.json")).json()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            parameters = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
            is_change = operation.get("x-required-role") in ("operator", "admin")
            assert ("dry_run" in parameters) is is_change, f"{method} {path}"
    assert (await api.get("/v1/overrides", params=DRY)).status_code == 422
