"""Requests to a control plane of a large fleet: no response, and no tick of the planner, stalls the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from control_plane.api.openapi import REQUIRED_ROLE
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from lab.memory_store import MemoryStore
from tests.support.api_app import OPERATOR, TOKEN, client_of, new_control_plane, served
from tests.support.hundred_regions import MODELS, REGIONS, TENANTS, fleet_reports, write_bundle
from tests.support.loop_turns import measured_turns
from tests.support.wait import until

MAX_TURN_S = 0.05

ENDLESS = "/v1/events"

QUERIES = {"/v1/plans/diff": "?before=1", "/v1/budgets": f"?tenant={TENANTS[0]}"}
"""Queries of paths that require one."""


@pytest.fixture
async def control_plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A leader that plans for the fleet."""
    write_bundle(tmp_path / "bundle")
    store = MemoryStore()
    leader = new_control_plane(store, policies=tmp_path / "bundle")
    await leader.start()
    await until(lambda: leader.reporter.seen_by().leading)
    report(leader, 1)
    await until(lambda: any(plan.classes for plan in leader.view.plans.values()))
    await until(lambda: bool(leader._planning.recommendations))
    yield leader
    await leader.stop()
    await store.close()


def report(leader: ControlPlane, seq: int) -> None:
    """Add the reports of all agents to the snapshot."""
    policy = leader.view.policy
    assert policy is not None
    for sent in fleet_reports(seq):
        leader._intake._fleet.add_report(sent, leader.view.now(), policy)


def reads(app: FastAPI, policy: str) -> list[tuple[str, dict[str, Any] | None]]:
    """Paths of all GET requests, and of the POST requests that change nothing with their bodies."""
    values = {"{generation}": "1", "{digest}": policy, "{name}": REGIONS[7]}
    paths = []
    for template, methods in app.openapi()["paths"].items():
        path = template + QUERIES.get(template, "")
        for name, value in values.items():
            path = path.replace(name, value)
        if REQUIRED_ROLE in methods.get("get", {}) and template != ENDLESS and "{" not in path:
            limit = any(parameter["name"] == "limit" for parameter in methods["get"].get("parameters", ()))
            paths.append((f"{path}?limit=500" if limit else path, None))
    asked = {"origin": REGIONS[0], "model": MODELS[0], "tenant": TENANTS[0]}
    return [*paths, ("/v1/explain", asked)]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_no_read_and_no_tick_stalls_the_loop(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = served(control_plane, Access(TOKEN))
    policy = control_plane.view.policy
    assert policy is not None
    longest_s: dict[str, float] = {}
    async with client_of(app, **OPERATOR) as http:
        asked = reads(app, policy.digest())
        report(control_plane, 2)
        async with measured_turns(monkeypatch) as turns:
            generation = control_plane._planning._planned_at
            await until(lambda: control_plane._planning._planned_at > generation)
            longest_s["tick"] = await turns.longest()
            for path, body in asked:
                await turns.reset()
                answer = await (http.get(path) if body is None else http.post(path, json=body))
                longest_s[path] = await turns.longest()
                # 409: the fleet has no ledger.
                assert answer.status_code in (200, 404, 409), f"{path}: {answer.text}"
    assert len(longest_s) > 20
    assert {name: taken_s for name, taken_s in longest_s.items() if taken_s >= MAX_TURN_S} == {}
