"""The HTTP API on the store in memory: open operations, authenticated ones, and error responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from control_plane.api.openapi import READ_ONLY
from control_plane.api.routes import reports_routes as reports_module
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.planning.report_intake import MAX_REPORT_BYTES, ReportReceipt
from control_plane.status.status import Status
from lab.memory_store import MemoryStore
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from tests.support.api_app import OPERATOR, REGIONS, TOKEN, is_problem, leading, new_control_plane, served
from tests.support.reports import MODEL, offered, packed, report
from tests.support.stores import put
from tests.support.wait import until


async def test_a_report_shows_in_the_status_and_leads_to_a_plan(
    control_plane: ControlPlane, http: httpx.AsyncClient
) -> None:
    await leading(control_plane)
    for region in REGIONS:
        body, headers = packed(report(region, offered(50.0, "eu-de", "eu-es")))
        response = await http.post("/v1/reports", content=body, headers=headers)
        assert response.status_code == 202
        assert msgspec.json.decode(response.content, type=ReportReceipt) == ReportReceipt(True, "http://north")
    await until(lambda: all(plan.classes for plan in control_plane.view.plans.values()))

    status = msgspec.json.decode((await http.get("/v1/status", headers=OPERATOR)).content, type=Status)
    assert (status.name, status.leading, status.store.up) == ("north", True, True)
    assert status.leader is not None
    assert (status.leader.name, status.leader.epoch) == ("north", status.epoch)
    frankfurt = {region.name: region for region in status.regions}["eu-de"]
    assert (frankfurt.city, frankfurt.state) == ("Frankfurt", RegionState.HEALTHY)
    assert [(pool.model, pool.slots) for pool in frankfurt.pools] == [(MODEL, 100)]
    assert [(demand.residency, demand.requests_per_s) for demand in frankfurt.demand] == [("eu-de+eu-es", 50.0)]
    assert {(agent.region, agent.registered) for agent in status.agents} == {(region, False) for region in REGIONS}
    assert {arc.server for arc in status.arcs if arc.origin == "us-east"} <= {"eu-de", "eu-es"}

    plans = (await http.get("/v1/plans/current", headers=OPERATOR)).content
    assert msgspec.json.decode(plans, type=dict[str, RegionPlan]) == control_plane.view.plans


async def test_only_authenticated_callers_can_read_the_fleet(http: httpx.AsyncClient) -> None:
    for path in ("/v1/status", "/v1/plans/current", "/v1/whoami", "/v1/audit", "/v1/audit/export"):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = await http.get(path, headers=headers)
            assert is_problem(response, 401), path
            assert response.headers["www-authenticate"].startswith("Bearer")


async def test_an_unreadable_audit_entry_does_not_hide_the_others(
    control_plane: ControlPlane, http: httpx.AsyncClient
) -> None:
    audit = AuditLog(control_plane._store)
    first, second = [await audit.record(AuditedAction(Caller("olga", Role.ADMIN), "a.b", "c", "")) for _ in range(2)]
    await put(control_plane._store, keys.audit_entry(first.seq), b"")
    page = await http.get("/v1/audit", headers=OPERATOR)
    assert page.status_code == 200
    assert (first.seq, second.seq) == (page.json()["unreadable"][0]["seq"], page.json()["items"][0]["seq"])
    lines = (await http.get("/v1/audit/export", headers=OPERATOR)).text.splitlines()
    exported = {line["seq"]: line.get("problem", "") for line in map(json.loads, lines)}
    assert "not signed" in exported[first.seq]
    assert exported[second.seq] == ""


async def test_health_is_open_and_metrics_are_not(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    assert (await http.get("/livez")).text == "ok\n"
    await until(lambda: not control_plane.reporter.not_ready())
    assert (await http.get("/readyz")).json() == {"ready": True, "policy_refused": []}
    assert (await http.get("/metrics")).status_code == 401
    metrics = await http.get("/metrics", headers=OPERATOR)
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "penstock_leader" in metrics.text


async def test_not_ready_states_the_reason(tmp_path: Path) -> None:
    bare = new_control_plane(MemoryStore(), policies=tmp_path)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(served(bare, Access(TOKEN))), base_url="http://bare"
    ) as client:
        response = await client.get("/readyz")
    assert is_problem(response, 503)
    assert len(response.json()["reasons"]) == 2


async def test_a_bad_signature_is_refused(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    body, _ = packed(report("eu-de"))
    assert is_problem(await http.post("/v1/reports", content=body), 401)
    assert is_problem(await http.post("/v1/reports", content=body, headers={"x-penstock-signature": "0" * 64}), 401)
    assert control_plane.reporter.status().agents == ()


async def test_the_body_of_a_report_that_nobody_signed_is_not_read(http: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    _, signed = packed(report("eu-de"))
    for headers in ({}, {**signed, "content-digest": "sha-256=:AAAA:"}, packed(report("eu-de"), "cp-2")[1]):
        assert is_problem(await http.post("/v1/reports", content=endless(), headers=headers), 401)


async def test_a_report_that_is_too_large_or_too_slow_is_refused(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, headers = packed(report("eu-de"))
    large = b"x" * (MAX_REPORT_BYTES + 1)
    assert is_problem(await http.post("/v1/reports", content=large, headers=headers), 413)
    monkeypatch.setattr(reports_module, "BODY_TIMEOUT_S", 0.05)

    async def dawdle() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    assert is_problem(await http.post("/v1/reports", content=dawdle(), headers=headers), 408)


async def test_an_unknown_path_is_a_problem_response(http: httpx.AsyncClient) -> None:
    assert is_problem(await http.get("/v1/nothing"), 404)
    assert is_problem(await http.get("/v1/reports"), 405)
    for path in ("/docs", "/redoc"):
        assert is_problem(await http.get(path), 404)


async def test_an_internal_error_shows_no_traceback(
    control_plane: ControlPlane, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: bool) -> Callable[[], Status]:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(control_plane.reporter, "prepared", broken)
    response = await http.get("/v1/status", headers=OPERATOR)
    assert is_problem(response, 500)
    assert "secret detail" not in response.text


async def test_no_change_with_an_idempotency_key_is_made(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    posts = {path: found["post"] for path, found in paths.items() if "security" in found.get("post", {})}
    changes = posts.keys() - READ_ONLY
    assert all(posts[path]["x-required-role"] in ("operator", "admin") for path in changes - {"/v1/session"})
    for path in posts:
        answer = await http.post(path.replace("{", "").replace("}", ""), headers={**OPERATOR, "idempotency-key": "k"})
        detail = str(answer.json().get("detail"))
        assert ("Idempotency-Key" in detail, path) == (path in changes, path)
        assert answer.status_code == 400 or path not in changes
