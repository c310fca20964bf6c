"""Overrides over the API, on the store in memory: required fields, refusals with their reasons, and audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from control_plane.daemon import ControlPlane
from penstock.fleet import snapshot
from tests.support.api_app import as_, is_problem, leading_api

DRAIN = {"reason": "new disks", "expires_in_s": 7200}


@pytest.fixture
async def api(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    # The leader has led long enough to treat regions without reports as silent.
    monkeypatch.setattr(snapshot, "SETTLE_S", 0.0)
    async with leading_api(control_plane) as client:
        yield client


async def overrides(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get("/v1/overrides")).json()["items"]
    return found


async def test_a_drain_is_set_shown_and_lifted(api: httpx.AsyncClient) -> None:
    set_ = await api.post("/v1/regions/eu-de/drain", json=DRAIN, headers=as_("duty"))
    assert set_.status_code == 201, set_.text
    created = set_.json()
    assert (created["state"], created["weight"], created["by_policy"]) == ("active", 0.0, False)
    assert created["override"].items() >= {"kind": "drain", "region": "eu-de", "author": "duty"}.items()
    assert created["override"]["expires_at"] == created["override"]["begins_at"] + 7200
    assert 0 < created["ends_in_s"] <= 7200

    shown = await api.get(set_.headers["location"])
    assert (shown.json()["override"], shown.headers["etag"]) == (created["override"], set_.headers["etag"])
    assert [item["override"] for item in await overrides(api)] == [created["override"]]

    where, tag = f"{set_.headers['location']}?reason=done", set_.headers["etag"]
    assert (await api.delete(where)).status_code == 428
    assert (await api.delete(where, headers={"if-match": '"other"'})).status_code == 412
    assert (await api.delete(set_.headers["location"], headers={"if-match": tag})).status_code == 422
    lifted = await api.delete(where, headers={"if-match": tag} | as_("duty"))
    assert lifted.status_code == 200
    assert lifted.json()["state"] == "returning"
    assert lifted.json()["override"]["lifted_by"] == "duty"

    entries = (await api.get("/v1/audit")).json()["items"]
    reported = [(entry["action"], entry["caller"], entry["reason"]) for entry in entries]
    assert reported == [("override.lift", "duty", "done"), ("override.drain", "duty", "new disks")]


async def test_undrain_lifts_every_drain_and_fail_over_of_the_region(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/regions/eu-de/undrain", json={"reason": "done"})).status_code == 409
    await api.post("/v1/regions/eu-de/drain", json=DRAIN)
    await api.post("/v1/overrides", json=DRAIN | {"kind": "fail_over", "region": "eu-de"})
    await api.post("/v1/overrides", json=DRAIN | {"kind": "weight", "region": "eu-de", "value": 0.5})
    await api.post("/v1/regions/jp-tok/drain", json=DRAIN)
    lifted = await api.post("/v1/regions/eu-de/undrain", json={"reason": "done"})
    assert lifted.status_code == 200
    kinds = [(item["override"]["kind"], item["override"]["region"]) for item in lifted.json()["overrides"]]
    assert sorted(kinds) == [("drain", "eu-de"), ("fail_over", "eu-de")]
    holding = [item["override"]["kind"] for item in await overrides(api) if item["state"] == "active"]
    assert sorted(holding) == ["drain", "weight"]


async def test_the_last_region_of_a_class_cannot_be_drained(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/regions/eu-de/drain", json=DRAIN)).status_code == 201
    refused = await api.post("/v1/regions/eu-es/drain", json=DRAIN)
    assert refused.status_code == 409
    problem = refused.json()
    assert problem["guard"] is True
    assert {emptied["residency"] for emptied in problem["classes"]} == {"eu-de+eu-es"}
    assert {"eu-personal", "personal"} <= set(problem["classes"][0]["tenants"])
    assert "force" in problem["detail"]
    meant = DRAIN | {"force": True}
    assert (await api.post("/v1/regions/eu-es/drain", json=meant, headers=as_("duty"))).status_code == 403
    assert (await api.post("/v1/regions/eu-es/drain", json=meant)).status_code == 201
    newest = (await api.get("/v1/audit")).json()["items"][0]
    assert newest["after"]["force"] is True
    assert "eu-de+eu-es" in newest["after"]["against"]


async def test_of_drains_at_once_that_would_empty_a_class_one_is_refused(api: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(api.post(f"/v1/regions/{region}/drain", json=DRAIN) for region in ("eu-de", "eu-es"))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 409]


async def test_roles_and_regions_of_callers(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/regions/eu-de/drain", json=DRAIN, headers=as_("guest"))).status_code == 403
    assert (await api.post("/v1/regions/eu-es/drain", json=DRAIN, headers=as_("germany"))).status_code == 403
    assert (await api.post("/v1/overrides", json=DRAIN | {"kind": "freeze"}, headers=as_("germany"))).status_code == 403
    own_freeze = DRAIN | {"kind": "freeze", "origin": "eu-de"}
    assert (await api.post("/v1/overrides", json=own_freeze, headers=as_("germany"))).status_code == 201
    assert (await api.post("/v1/regions/eu-de/drain", json=DRAIN, headers=as_("germany"))).status_code == 201
    theirs = await api.post("/v1/regions/jp-tok/drain", json=DRAIN)
    away = {"if-match": "*"} | as_("germany")
    assert (await api.delete(f"{theirs.headers['location']}?reason=x", headers=away)).status_code == 403
    assert (await api.get("/v1/overrides", headers=as_("guest"))).status_code == 200


async def test_an_invalid_override_is_refused(api: httpx.AsyncClient) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"kind": "drain", "region": "mars"}, "no region 'mars'"),
        ({"kind": "drain", "region": "eu-dd"}, "region: there is no region 'eu-dd'; did you mean eu-de?"),
        ({"kind": "drain", "region": "eu-de", "origin": "us-eas"}, "origin: there is no region 'us-eas'; did you mean"),
        ({"kind": "drain", "region": "eu-de", "value": 0.5}, "value"),
        ({"kind": "drain"}, "required for a"),
        ({"kind": "weight", "region": "eu-de", "value": 2.0}, "value"),
        ({"kind": "drain", "region": "eu-de", "reason": ""}, "reason"),
        ({"kind": "drain", "region": "eu-de", "reason": " "}, "reason"),
        (
            {"kind": "drain", "region": "eu-de", "reason": "two\nlines"},
            "body.reason: must be one line of text without control characters",
        ),
        ({"kind": "drain", "region": "eu-de", "reason": "harmless \u202etxt.exe"}, "body.reason: must be one line"),
        ({"kind": "drain", "region": "eu-de", "reason": "\x1b[2J"}, "reason"),
        ({"kind": "drain", "region": "eu-de", "expires_in_s": 0}, "expires_in_s"),
        ({"kind": "drain", "region": "eu-de", "expires_in_s": True}, "expires_in_s"),
        ({"kind": "drain", "region": "eu-de", "expires_in_s": "60"}, "body.expires_in_s: give a number of seconds"),
        ({"kind": "drain", "region": "eu-de", "last_resort": "no"}, "last_resort"),
        ({"kind": "drain", "region": "eu-de", "force": 1}, "force"),
        ({"kind": "weight", "region": "eu-de", "value": "0.5"}, "value"),
        ({"kind": "drain", "region": "eu-de", "expires_in_s": "never"}, "expires_in_s"),
        ({"kind": "drain", "region": "eu-de", "expires_in_s": 1e299}, "expires_in_s"),
        ({"kind": "drain", "region": "eu-de", "expires_in_s": 10**400}, "body.expires_in_s: give a number of seconds"),
        ({"kind": "weight", "region": "eu-de", "value": 10**400}, "value"),
        ({"kind": "flood", "region": "eu-de"}, "kind"),
        ({"kind": "drain", "region": "eu-de", "author": "somebody else"}, "author"),
    ]
    for body, reported in bodies:
        refused = await api.post("/v1/overrides", json=DRAIN | body)
        assert refused.status_code == 422, (body, refused.text)
        assert reported in refused.json()["detail"]
    assert await overrides(api) == []


async def test_a_repeated_field_is_refused(api: httpx.AsyncClient) -> None:
    for twice in (
        '{"reason": "a", "expires_in_s": 9, "reason": "b"}',
        '{"reason": "a", "expires_in_s": 9, "\\u0072eason": "b"}',
    ):
        for kind in ("application/json; charset=utf-8", "application/problem+json"):
            refused = await api.post("/v1/regions/eu-de/drain", content=twice, headers={"content-type": kind})
            assert is_problem(refused, 400)
            assert refused.json()["errors"] == [
                {"field": "body", "problem": "'reason' is repeated in one object; give it once"}
            ]
    refused = await api.get("/v1/overrides?limit=1&limit=2")
    assert is_problem(refused, 422)
    assert refused.json()["detail"] == "query.limit: is repeated; give it once"
    assert await overrides(api) == []


async def test_a_blank_reason_is_refused_for_every_change(api: httpx.AsyncClient) -> None:
    for change in ("regions/eu-de/undrain", "regions/eu-de/drain", "rollouts/current/halt"):
        refused = await api.post(f"/v1/{change}", json=DRAIN | {"reason": " \u2003"}, headers={"if-match": "*"})
        assert is_problem(refused, 422)
        assert "body.reason: must be one line" in refused.json()["detail"]


async def test_an_unknown_region_is_not_undrained(api: httpx.AsyncClient) -> None:
    refused = await api.post("/v1/regions/eu-dd/undrain", json={"reason": "a test"})
    assert (refused.status_code, "did you mean eu-de?" in refused.text) == (422, True)


async def test_a_filter_by_an_unknown_region_is_refused(api: httpx.AsyncClient) -> None:
    for resource in ("endpoints", "agents"):
        refused = await api.get(f"/v1/{resource}", params={"region": "eu-dd"})
        assert is_problem(refused, 404)
        assert refused.json()["detail"] == "the policy in force has no region 'eu-dd'; did you mean eu-de?"
        assert (await api.get(f"/v1/{resource}", params={"region": "eu-de"})).json()["items"] == []


async def test_a_filter_by_an_unknown_model_is_refused(api: httpx.AsyncClient) -> None:
    refused = await api.get("/v1/endpoints", params={"model": "llama-3.1-8"})
    assert is_problem(refused, 404)
    assert refused.json()["detail"] == "the policy in force has no model 'llama-3.1-8'; did you mean llama-3.1-8b?"
    assert (await api.get("/v1/endpoints", params={"model": "llama-3.1-8b"})).json()["items"] == []


async def test_a_reason_has_to_be_given_and_an_override_without_an_expiry_has_no_end(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/regions/eu-de/drain", json={"expires_in_s": 7200})).status_code == 422
    without_end = await api.post("/v1/regions/eu-de/drain", json={"reason": "new disks"})
    assert without_end.status_code == 201
    assert without_end.json()["ends_in_s"] is None


async def test_a_duplicate_is_refused_with_the_existing_override(api: httpx.AsyncClient) -> None:
    first = await api.post("/v1/regions/eu-de/drain", json=DRAIN)
    second = await api.post("/v1/regions/eu-de/drain", json=DRAIN)
    assert second.status_code == 409
    assert second.json()["override"] == first.json()["override"]["id"]


async def test_a_repeated_put_sets_one_override(api: httpx.AsyncClient) -> None:
    body = DRAIN | {"kind": "drain", "region": "eu-de"}
    first, second = [await api.put("/v1/overrides/disks-1", json=body) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["override"] == second.json()["override"]
    assert first.headers["etag"] == second.headers["etag"]
    assert first.headers["location"] == "/v1/overrides/disks-1"
    assert len(await overrides(api)) == 1
    assert len((await api.get("/v1/audit")).json()["items"]) == 1
    await api.delete("/v1/overrides/disks-1?reason=done", headers={"if-match": "*"})
    late = await api.put("/v1/overrides/disks-1", json=body)
    assert (late.status_code, late.json()["state"]) == (200, "returning"), "a late repetition sets it again"


async def test_an_identifier_belongs_to_one_request(api: httpx.AsyncClient) -> None:
    body = DRAIN | {"kind": "drain", "region": "eu-de"}
    assert (await api.put("/v1/overrides/disks-1", json=body)).status_code == 201
    others = [{"region": "jp-tok"}, {"reason": "old disks"}, {"expires_in_s": 7201}, {"expires_in_s": "none"}]
    for other in others:
        taken = await api.put("/v1/overrides/disks-1", json=body | other)
        assert is_problem(taken, 409), taken.text
        assert "another override has the identifier disks-1" in taken.json()["detail"]
    assert (await api.put("/v1/overrides/disks-1", json=body, headers=as_("duty"))).status_code == 409
    for name in ("drill-1", "window-1", "A", "a/b", "x" * 64):
        assert (await api.put(f"/v1/overrides/{name}", json=body)).status_code in (404, 405, 422), name
    assert len(await overrides(api)) == 1


async def test_an_unknown_override_is_404(api: httpx.AsyncClient) -> None:
    assert (await api.get("/v1/overrides/nothing")).status_code == 404
    assert (await api.delete("/v1/overrides/nothing?reason=x", headers={"if-match": "*"})).status_code == 404
