"""Drills over the API, on the store in memory: start, abort, and refusals with their reasons."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from adapters.store import keys
from control_plane.daemon import ControlPlane
from tests.support.api_app import REGIONS, as_, is_problem
from tests.support.reports import offered, packed, report
from tests.support.stores import put
from tests.support.wait import found
from tests.unit.control_plane.api.test_api_overrides import api

__all__ = ["api"]

EVACUATE = {"exercise": "evacuate_region", "region": "jp-tok", "reason": "a test"}
FAILOVER = {"exercise": "step_down", "reason": "a test"}


@pytest.fixture
async def reporting(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """The API of a leader to which every region has reported."""
    for region in REGIONS:
        body, headers = packed(report(region, offered(5.0, *REGIONS)))
        assert (await api.post("/v1/reports", content=body, headers=headers)).status_code == 202

    async def healthy() -> Any:
        regions = (await api.get("/v1/status")).json()["regions"]
        return True if {region["state"] for region in regions} == {"healthy"} else None

    await found(healthy)
    return api


async def test_a_repeated_put_begins_one_drill(reporting: httpx.AsyncClient) -> None:
    body = EVACUATE | {"hold_s": 3600.0}
    ahead = await reporting.put("/v1/drills/2", json=body)
    assert (ahead.status_code, ahead.json()["detail"]) == (409, "the number of the next drill is 1, not 2")
    shown = await reporting.put("/v1/drills/1", params={"dry_run": "true"}, json=body)
    assert (shown.status_code, shown.json()["number"]) == (201, 1)
    assert (await reporting.get("/v1/drills")).json()["items"] == []
    first, second = [await reporting.put("/v1/drills/1", json=body) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 200), second.text
    assert (first.json()["number"], second.json()["number"]) == (1, 1)
    other = await reporting.put("/v1/drills/1", json=body | {"reason": "another one"})
    assert (other.status_code, other.json()["detail"]) == (409, "the number of the next drill is 2, not 1")
    assert len((await reporting.get("/v1/drills")).json()["items"]) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (EVACUATE | {"region": None}, "region: required for evacuate_region"),
        (FAILOVER | {"region": "jp-tok"}, "region: required for evacuate_region"),
        (EVACUATE | {"region": "mars"}, "mars"),
        (EVACUATE | {"hold_s": 3601}, "hold_s"),
    ],
)
async def test_an_invalid_drill_is_refused(api: httpx.AsyncClient, body: dict[str, Any], says: str) -> None:
    refused = await api.post("/v1/drills", json=body)
    assert is_problem(refused, 422)
    assert says in refused.text


async def test_roles_and_regions_of_callers(api: httpx.AsyncClient) -> None:
    for name, body in (("guest", EVACUATE), ("germany", EVACUATE), ("germany", FAILOVER)):
        assert (await api.post("/v1/drills", json=body, headers=as_(name))).status_code == 403


async def test_a_drill_without_enough_capacity_is_refused(api: httpx.AsyncClient) -> None:
    unknown = await api.post("/v1/drills", json=EVACUATE)
    assert (unknown.status_code, unknown.json()["detail"]) == (409, "jp-tok is unknown, not healthy")
    alone = await api.post("/v1/drills", json=FAILOVER)
    assert (alone.status_code, alone.json()["detail"]) == (409, "there is no second control plane to take over")
    assert (await api.get("/v1/drills")).json() == {"items": [], "next_cursor": None}
    assert (await api.get("/v1/drills/1")).status_code == 404
    assert (await api.post("/v1/drills/1/abort", json={"reason": "a test"})).status_code == 404


async def test_an_unreadable_drill_is_a_reason_to_refuse(
    reporting: httpx.AsyncClient, control_plane: ControlPlane
) -> None:
    await put(control_plane._store, keys.DRILL, b"garbage")
    for path, body in (("", EVACUATE), ("/1/abort", {"reason": "a test"})):
        refused = await reporting.post(f"/v1/drills{path}", json=body)
        assert is_problem(refused, 409)
        assert "delete newest-drill" in refused.json()["detail"]
    assert (await reporting.get("/v1/drills")).json()["items"] == []


async def test_one_drill_at_a_time_and_an_abort_lifts_the_drain(
    reporting: httpx.AsyncClient, control_plane: ControlPlane
) -> None:
    begun = await reporting.post("/v1/drills", json=EVACUATE, headers=as_("duty"))
    assert begun.status_code == 201, begun.text
    assert begun.json().items() >= {"number": 1, "region": "jp-tok", "author": "duty", "phase": "prepared"}.items()
    second = await reporting.post("/v1/drills", json=FAILOVER)
    assert (second.status_code, second.json()["detail"]) == (409, "drill 1 is under way, and there is one at a time")

    async def drained() -> Any:
        items = (await reporting.get("/v1/overrides")).json()["items"]
        return items[0] if items else None

    drain = (await found(drained))["override"]
    assert drain.items() >= {"id": "drill-1", "kind": "drain", "region": "jp-tok", "author": "duty"}.items()

    path = begun.headers["location"]
    assert (await reporting.post(f"{path}/abort", json={"reason": "no"}, headers=as_("germany"))).status_code == 403
    aborted = await reporting.post(f"{path}/abort", json={"reason": "enough"}, headers=as_("duty"))
    assert (aborted.status_code, aborted.json()["phase"]) == (200, "aborting")
    assert (await reporting.post(f"{path}/abort", json={"reason": "again"})).status_code == 409

    async def lifted() -> Any:
        override = (await drained())["override"]
        return override if override["lifted_at"] else None

    assert (await found(lifted))["lifted_by"] == "north"
    shown = (await reporting.get(path)).json()
    (step,) = [step for step in shown["steps"] if step["phase"] == "aborting"]
    assert step.items() >= {"by": "duty", "why": "enough"}.items()
    actions = [entry["action"] for entry in (await reporting.get("/v1/audit")).json()["items"]][::-1]
    assert actions[:2] == ["drill.prepared", "override.drain"]
    assert actions.index("drill.aborting") < actions.index("override.lift")
