"""Tenants and keys over the API: roles, repeated and concurrent requests, bad input, and what responses contain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from control_plane.daemon import ControlPlane
from control_plane.tenants.tenant_store import TenantAction
from penstock.tenancy.tenant_record import TenantKey, TenantRecord, key_digest
from tests.support.api_app import CALLERS, as_, is_problem, leading_api, leading_control_plane
from tests.support.tiers import planet_with_tiers

ANY = {"if-match": "*"}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planet_with_tiers(tmp_path_factory.mktemp("policies") / "planet")


@pytest.fixture
async def control_plane(policies: Path) -> AsyncIterator[ControlPlane]:
    async with leading_control_plane(policies=policies) as north:
        yield north


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    async with leading_api(control_plane) as client:
        yield client


async def test_a_budget_of_money_without_prices_is_a_problem(api: httpx.AsyncClient) -> None:
    body = {"tier": "gold", "budgets": [{"unit": "money_per_day", "limit": 5}]}
    made = await api.put("/v1/tenants/acme", json=body, headers=as_("duty"))
    assert made.json()["problem"] == "budgets of money limit nothing, since the policy in force has no prices"


async def test_a_tenant_and_its_keys_from_creation_to_deletion(api: httpx.AsyncClient) -> None:
    budgets = [{"unit": "requests_per_minute", "limit": 60, "scope": "region"}]
    body = {"tier": "gold", "budgets": budgets, "note": "a team"}
    made = await api.put("/v1/tenants/acme", json=body, headers=as_("duty"))
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/v1/tenants/acme"
    shown = made.json()
    assert (shown["tier"], shown["data_class"], shown["priority"], shown["source"]) == ("gold", "personal", 3, "api")
    assert [budget["limit"] for budget in shown["budgets"] + shown["tier_budgets"]] == [60.0, 1000.0]
    again = await api.put("/v1/tenants/acme", json=body, headers=as_("duty"))
    assert (again.status_code, again.json()) == (200, shown)
    other = await api.put("/v1/tenants/acme", json=body | {"note": ""}, headers=as_("duty"))
    assert is_problem(other, 409)
    assert is_problem(await api.post("/v1/tenants", json=body | {"name": "acme"}, headers=as_("duty")), 409)

    keyed = await api.post("/v1/tenants/acme/keys", json={"note": "app"}, headers=as_("duty"))
    assert (keyed.status_code, keyed.headers["cache-control"]) == (201, "no-store")
    key, view = keyed.json()["key"], keyed.json()["view"]
    assert key.startswith(view["id"] + "-")
    rotated = await api.post(f"/v1/tenants/acme/keys/{view['id']}/rotate", json={"overlap_s": 60}, headers=as_("duty"))
    assert rotated.status_code == 201, rotated.text
    second = rotated.json()["view"]
    assert (second["note"], rotated.json()["replaced"]["id"]) == ("app", view["id"])
    assert rotated.json()["replaced"]["expires_at"] > view["created_at"] + 59
    revoked = await api.delete(f"/v1/tenants/acme/keys/{second['id']}", params={"reason": "leaked"})
    assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
    keys = await api.get("/v1/tenants/acme/keys", headers=as_("guest"))
    assert {each["id"]: each["state"] for each in keys.json()["items"]} == {
        view["id"]: "valid",
        second["id"]: "revoked",
    }
    for secret in (key, rotated.json()["key"]):
        assert secret not in keys.text
        assert sha256(secret.encode()).hexdigest() not in keys.text

    gone = await api.delete("/v1/tenants/acme", params={"reason": "left"}, headers=ANY)
    assert (gone.status_code, gone.json()["name"]) == (200, "acme")
    assert (await api.delete("/v1/tenants/acme", params={"reason": "left"}, headers=ANY)).status_code == 200
    assert is_problem(await api.get("/v1/tenants/acme"), 404)
    assert is_problem(await api.get("/v1/tenants/acme/keys"), 404)
    assert is_problem(await api.put("/v1/tenants/acme", json=body), 409)
    assert is_problem(await api.post("/v1/tenants", json=body | {"name": "acme"}), 409)
    assert is_problem(await api.get("/v1/tenants/acme"), 404)
    restored = await api.put("/v1/tenants/acme", json=body | {"restore": True})
    assert (restored.status_code, restored.json()["keys"]) == (201, 0)
    entries = (await api.get("/v1/audit")).json()["items"]
    assert [(entry["action"], entry["caller"]) for entry in entries] == [
        ("tenant.create", "admin-token"),
        ("tenant.delete", "admin-token"),
        ("key.revoke", "admin-token"),
        ("key.rotate", "duty"),
        ("key.create", "duty"),
        ("tenant.create", "duty"),
    ]


async def test_one_verb_revokes_keys_of_the_bundle_and_of_created_tenants(api: httpx.AsyncClient) -> None:
    await api.put("/v1/tenants/acme", json={"tier": "gold"})
    key = (await api.post("/v1/tenants/acme/keys", json={})).json()["key"]
    body = {"key_digest": sha256(key.encode()).hexdigest(), "reason": "leaked"}
    for status in (201, 200):
        revoked = await api.post("/v1/revoked-keys", json=body, headers=as_("duty"))
        assert (revoked.status_code, revoked.json()["tenant"]) == (status, "acme")
    (shown,) = (await api.get("/v1/tenants/acme/keys")).json()["items"]
    assert shown["state"] == "revoked"
    assert (await api.get("/v1/revoked-keys")).json()["items"] == []
    lifted = await api.delete(f"/v1/revoked-keys/{body['key_digest'][:16]}", params={"reason": "r"})
    assert is_problem(lifted, 404)
    assert "final" in lifted.text


async def test_a_change_is_conditional_and_a_suspension_can_be_repeated(api: httpx.AsyncClient) -> None:
    made = await api.put("/v1/tenants/acme", json={"tier": "gold", "note": "n"})
    assert is_problem(await api.patch("/v1/tenants/acme", json={"tier": "free"}), 428)
    tag = {"if-match": made.headers["etag"]}
    changed = await api.patch("/v1/tenants/acme", json={"tier": "free"}, headers=tag)
    assert (changed.status_code, changed.json()["tier"], changed.json()["note"]) == (200, "free", "n")
    assert is_problem(await api.patch("/v1/tenants/acme", json={"tier": "gold"}, headers=tag), 412)
    assert is_problem(await api.delete("/v1/tenants/acme", params={"reason": "r"}, headers=tag), 412)
    assert is_problem(await api.patch("/v1/tenants/acme", json={}, headers=ANY), 422)
    read = await api.get("/v1/tenants/acme")
    assert read.headers["etag"] == changed.headers["etag"]
    for verb, suspended in (("suspend", True), ("suspend", True), ("resume", False)):
        response = await api.post(f"/v1/tenants/acme/{verb}", json={"reason": "unpaid"}, headers=as_("duty"))
        assert (response.status_code, response.json()["suspended"]) == (200, suspended)
    assert [entry["action"] for entry in (await api.get("/v1/audit")).json()["items"]] == [
        "tenant.resume",
        "tenant.suspend",
        "tenant.change",
        "tenant.create",
    ]


async def test_the_list_has_the_tenants_of_the_policy_and_the_created_ones(api: httpx.AsyncClient) -> None:
    for name in ("acme-2", "acme-1"):
        await api.put(f"/v1/tenants/{name}", json={"tier": "gold"})
    whole = (await api.get("/v1/tenants")).json()["items"]
    assert [each["name"] for each in whole] == sorted(each["name"] for each in whole)
    assert {each["source"] for each in whole} == {"policy", "api"}
    first = (await api.get("/v1/tenants", params={"source": "api", "limit": 1})).json()
    second = (await api.get("/v1/tenants", params={"source": "api", "cursor": first["next_cursor"]})).json()
    assert [each["name"] for each in first["items"] + second["items"]] == ["acme-1", "acme-2"]
    found = (await api.get("/v1/tenants", params={"search": "e-2", "tier": "gold"})).json()["items"]
    assert [each["name"] for each in found] == ["acme-2"]
    assert (await api.get("/v1/tenants", params={"tier": "free"})).json()["items"] == []


async def test_roles(api: httpx.AsyncClient) -> None:
    await api.put("/v1/tenants/acme", json={"tier": "gold"})
    for name in ("guest", "germany"):
        assert is_problem(await api.put("/v1/tenants/other", json={"tier": "gold"}, headers=as_(name)), 403)
        assert is_problem(await api.post("/v1/tenants/acme/keys", json={}, headers=as_(name)), 403)
        assert is_problem(await api.patch("/v1/tenants/acme", json={"note": "x"}, headers=as_(name) | ANY), 403)
        assert is_problem(await api.post("/v1/tenants/acme/suspend", json={"reason": "r"}, headers=as_(name)), 403)
    gone = await api.delete("/v1/tenants/acme", params={"reason": "r"}, headers=as_("duty") | ANY)
    assert is_problem(gone, 403)


BAD: list[tuple[str, dict[str, object], int, str]] = [
    ("a_b", {"tier": "gold"}, 422, "use 1 to 63 lower-case letters, digits and hyphens"),
    ("\u0430cme", {"tier": "gold"}, 422, "use 1 to 63 lower-case letters"),
    ("a/b", {"tier": "gold"}, 422, "use 1 to 63 lower-case letters"),
    ("a" * 64, {"tier": "gold"}, 422, "use 1 to 63 lower-case letters"),
    ("acme\n", {"tier": "gold"}, 422, "use 1 to 63 lower-case letters"),
    ("acme", {"tier": "glod"}, 422, "tier: the policy in force has no tier 'glod'; did you mean gold?"),
    ("acme", {"tier": "gold", "budgets": [{"unit": "tokens", "limit": 1}]}, 422, "budgets[0].unit"),
    ("acme", {"tier": "gold", "budgets": [{"unit": "requests_per_minute", "limit": -1}]}, 422, "greater than 0"),
    ("acme", {"tier": "gold", "budgets": [{"unit": "requests_per_minute", "limit": 1e16}]}, 422, "less than or"),
    ("acme", {"tier": "gold", "budgets": [{"unit": "requests_per_minute", "limit": "1"}]}, 422, "valid number"),
    (
        "acme",
        {"tier": "gold", "budgets": [{"unit": "requests_per_minute", "limit": 1}] * 2},
        422,
        "has two budgets of requests_per_minute for the fleet; keep the smaller one",
    ),
    ("acme", {"tier": "gold", "note": "two\nlines"}, 422, "one line"),
    ("acme", {}, 422, "tier"),
    ("personal", {"tier": "gold"}, 409, "the policy has a tenant personal"),
]


async def test_a_bad_tenant_is_refused_and_nothing_is_made(api: httpx.AsyncClient) -> None:
    for name, body, status, message in BAD:
        response = await api.post("/v1/tenants", json=body | {"name": name})
        assert is_problem(response, status), response.text
        assert message in response.json()["detail"]
    assert (await api.get("/v1/tenants", params={"source": "api"})).json()["items"] == []


async def test_tenants_of_the_policy_are_shown_and_not_changed(api: httpx.AsyncClient) -> None:
    shown = (await api.get("/v1/tenants/personal")).json()
    assert (shown["source"], shown["tier"], shown["problem"]) == ("policy", None, None)
    (key, *_) = (await api.get("/v1/tenants/personal/keys")).json()["items"]
    assert (len(key["id"]), key["created_at"]) == (16, None)
    assert is_problem(await api.post("/v1/tenants/personal/keys", json={}), 409)
    assert is_problem(await api.patch("/v1/tenants/personal", json={"note": "x"}, headers=ANY), 409)
    assert is_problem(await api.delete("/v1/tenants/personal", params={"reason": "r"}, headers=ANY), 409)
    assert is_problem(await api.post("/v1/tenants/unknown/keys", json={}), 404)


async def test_decisions_for_created_tenants_are_explained(api: httpx.AsyncClient) -> None:
    await api.put("/v1/tenants/acme", json={"tier": "gold"})
    made = (await api.post("/v1/tenants/acme/keys", json={})).json()
    asked = {"origin": "eu-de", "model": "llama-3.1-8b", "country": "DE"}
    by_key = {"key_digest": sha256(made["key"].encode()).hexdigest()}
    for sender in ({"tenant": "acme"}, {"tenant": "gold/*"}, by_key):
        explained = (await api.post("/v1/explain", json=asked | sender)).json()["explanation"]
        assert (explained["data_class"], explained["residency"]) == ("personal", "eu-de+eu-es")
        assert explained["query"]["tenant"] == sender.get("tenant", "acme")
    steered = await api.get("/v1/steer", params={"tenant": "acme", "country": "DE"})
    assert {entry["region"] for entry in steered.json()["entries"]} == {"eu-de", "eu-es"}
    await api.post("/v1/tenants/acme/suspend", json={"reason": "unpaid"})
    refused = (await api.post("/v1/explain", json=asked | {"tenant": "acme"})).json()["explanation"]["refusal"]
    assert (refused["reason"], refused["detail"]) == ("tenant_suspended", "tenant acme is suspended")
    await api.delete(f"/v1/tenants/acme/keys/{made['view']['id']}", params={"reason": "leaked"})
    revoked = await api.post("/v1/explain", json=asked | by_key)
    assert is_problem(revoked, 422)
    assert f"{made['view']['id']} is revoked" in revoked.json()["detail"]


async def test_a_key_of_a_tenant_that_the_policy_hides_is_no_tenants(
    control_plane: ControlPlane, api: httpx.AsyncClient
) -> None:
    # Created before the policy had a tenant of the name.
    record = TenantRecord("personal", "gold", 1000.0, (TenantKey("psk-1", key_digest("secret"), 1000.0),))
    action = TenantAction(CALLERS["duty"], "tenant.create", record.name, "new")
    await control_plane._tenants.change(action, lambda before, now: record)
    asked = {"origin": "eu-de", "model": "llama-3.1-8b", "key_digest": key_digest("secret").hex()}
    refused = await api.post("/v1/explain", json=asked)
    assert is_problem(refused, 422)
    assert refused.json()["detail"] == "key_digest: no tenant has this key"
    logged = await api.post("/v1/explain", json=asked | {"then": {"at": 1000.0}})
    assert is_problem(logged, 422)
