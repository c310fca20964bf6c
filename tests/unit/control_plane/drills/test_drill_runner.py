"""Drills on the store in memory: by two control planes, and by a leader while others change the store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put, StoreError
from adapters.store.informer import Mirror
from adapters.store.members import Member
from adapters.store.signed_store import UNAUTHENTIC
from control_plane.audit.audit_log import AuditLog
from control_plane.auth.authentication import Access
from control_plane.drills import drill_runner
from control_plane.drills.drill_runner import DrillRunner
from control_plane.leadership import leader_elector
from control_plane.status.fleet_view import FleetView
from lab.memory_store import MemoryStore
from penstock.drills.drill_state import DrillPhase, DrillRequest
from penstock.overrides.overrides import Override
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.operations import DrillSchedule, Exercise
from tests.support.api_app import OPERATOR, REGIONS, TOKEN, new_control_plane, served
from tests.support.identities import control_plane_keyring
from tests.support.override_builders import drain
from tests.support.paths import PLANET
from tests.support.reports import offered, packed, report
from tests.support.stores import put
from tests.support.wait import found, until
from tests.unit.control_plane.rollout.test_rollout_runner import OLD, World, world

__all__ = ["world"]

DUTY = Caller("duty", Role.OPERATOR)
EVACUATE = DrillRequest(Exercise.EVACUATE_REGION, "eu-es", 60.0, 2.0, reason="a test", author="duty")
DOCUMENTS = {
    # No region is judged failed, however late a busy machine sends the reports.
    "failover": "apiVersion: penstock/v1\nkind: Failover\nhold_down_s: 1.0\nfailback_ramp_s: 1.0\n"
    "unhealthy_threshold: 100\n",
    "spillover": "apiVersion: penstock/v1\nkind: Spillover\ntarget_utilisation: 0.8\nstep_per_s: 1.0\n",
    "drills": "apiVersion: penstock/v1\nkind: Drill\nname: takeover\nexercise: step_down\nstarts_at: {}\n",
}
NAMES = ("north", "south")


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """The APIs of both control planes, by name; every region reports to both, and a scheduled drill is due."""
    # The one that stepped down does not win the next election, however slow the machine is.
    monkeypatch.setattr(leader_elector, "STAND_BACK_S", 60.0)
    monkeypatch.setattr(drill_runner, "TICK_S", 0.1)
    folder = tmp_path / "policy"
    shutil.copytree(PLANET, folder)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    for name, text in DOCUMENTS.items():
        (folder / f"{name}.yaml").write_text(text.format(now))
    store = MemoryStore()
    planes = [new_control_plane(store, name, policies=folder, keyring=control_plane_keyring(name)) for name in NAMES]
    apis = {
        name: httpx.AsyncClient(
            transport=httpx.ASGITransport(served(plane, Access(TOKEN)), raise_app_exceptions=False),
            base_url=f"http://{name}",
            headers=OPERATOR,
        )
        for name, plane in zip(NAMES, planes, strict=True)
    }
    for plane in planes:
        await plane.start()
    await until(lambda: any(plane.elector.epoch for plane in planes))
    reporting = asyncio.create_task(_report(apis))
    yield apis
    reporting.cancel()
    with suppress(asyncio.CancelledError):
        await reporting
    for plane in planes:
        await plane.stop()
    for api in apis.values():
        await api.aclose()
    await store.close()


async def _report(apis: dict[str, httpx.AsyncClient]) -> None:
    """Send reports of every region to both control planes until cancelled."""
    seq = 0
    while True:
        seq += 1
        for region in REGIONS:
            for name, api in apis.items():
                body, headers = packed(report(region, offered(5.0, *REGIONS), seq=seq), receiver=name)
                assert (await api.post("/v1/reports", content=body, headers=dict(headers))).status_code == 202
        await asyncio.sleep(0.2)


async def _over(api: httpx.AsyncClient, number: int) -> dict[str, Any]:
    """Wait for the end of a drill and return its report."""

    async def look() -> Any:
        response = await api.get(f"/v1/drills/{number}")
        shown = response.json()
        return shown if response.status_code == 200 and shown["phase"] in ("done", "aborted", "refused") else None

    ended: dict[str, Any] = await found(look)
    return ended


async def test_a_scheduled_failover_and_an_evacuation_complete(fleet: dict[str, httpx.AsyncClient]) -> None:
    taken_over = await _over(fleet["north"], 1)
    assert taken_over.items() >= {"phase": "done", "schedule": "takeover", "rpo": 0, "region": None}.items()
    assert taken_over["rto_s"] > 0.0
    (leader,) = [name for name in NAMES if f"{name} leads" in taken_over["why"]]
    wanted = {"exercise": "evacuate_region", "region": "jp-tok", "hold_s": 0.1, "reason": "a test"}

    async def begun() -> Any:
        # A region may be judged failed for a moment if the machine delays the test for seconds.
        response = await fleet[leader].post("/v1/drills", json=wanted)
        return response.json() if response.status_code == 201 else None

    evacuated = await _over(fleet[leader], (await found(begun))["number"])
    assert [step["phase"] for step in evacuated["steps"]] == ["prepared", "evacuating", "holding", "returning", "done"]
    assert evacuated["rto_s"] > 0.0
    assert evacuated["return_s"] >= 1.0
    entries = (await fleet[leader].get("/v1/audit")).json()["items"][::-1]
    # The time at which the sweep removes the drain does not matter here.
    assert [entry["action"] for entry in entries if entry["action"] != "override.expire"] == [
        "drill.stepping_down",
        "drill.done",
        "drill.prepared",
        "override.drain",
        *(f"drill.{phase}" for phase in ("evacuating", "holding", "returning")),
        "override.lift",
        "drill.done",
    ]


@pytest.fixture
async def runner(world: World) -> DrillRunner:
    """The drills of a leader; every region is healthy."""
    view = FleetView(
        world.rollouts,
        world.fleet,
        world.planning,
        Mirror(world.store, keys.PLANS, RegionPlan, rng=Random(1)),
        lambda: world.now,
    )
    await world.pass_s(5.0)
    return DrillRunner(
        world.store,
        AuditLog(world.store, lambda: world.now),
        elector=world.elector,
        overrides=world.overrides,
        view=view,
        members=Mirror(world.store, keys.CONTROL_PLANES, Member, rng=Random(1)),
    )


async def _phase(runner: DrillRunner) -> DrillPhase:
    drill = (await runner.drills.newest()).drill
    assert drill is not None
    return drill.phase


async def _depose(world: World) -> None:
    """Elect another leader, which the elector has not noticed yet."""
    await world.store.commit([], [Delete(keys.LEADER)])
    await world.store.commit([], [Put(keys.LEADER, encode(Member("b", "http://b")))])
    assert world.elector.epoch is not None


async def test_a_former_leader_sets_no_drain(world: World, runner: DrillRunner) -> None:
    await runner.begin(DUTY, EVACUATE)
    await _depose(world)
    await runner.tick()
    assert (await world.overrides.read()).overrides == ()
    assert await _phase(runner) is DrillPhase.PREPARED


async def test_a_scheduled_drill_is_logged_only_if_it_was_written(world: World, runner: DrillRunner) -> None:
    schedule = DrillSchedule("empty-madrid", Exercise.EVACUATE_REGION, world.now, "eu-es")
    assert world.rollouts.active is not None
    main = msgspec.structs.replace(world.rollouts.active.main, policy=msgspec.structs.replace(OLD, drills=(schedule,)))
    world.rollouts.active = msgspec.structs.replace(world.rollouts.active, main=main)
    await _depose(world)
    with capture_logs() as logs:
        await runner.tick()
    assert (await runner.drills.newest()).drill is None
    assert "scheduled drill" not in [entry["event"] for entry in logs]


async def test_a_refused_drain_does_not_replace_an_abort(
    world: World, runner: DrillRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runner.begin(DUTY, EVACUATE)
    begin = world.overrides.begin

    async def begin_after_an_abort(*args: Any, **options: Any) -> Override:
        await runner.abort(DUTY, 1, "enough", lambda _: None)
        return await begin(*args, **options)

    monkeypatch.setattr(world.overrides, "begin", begin_after_an_abort)
    await begin(DUTY, drain("eu-es", begins_at=world.now), OLD, {})
    await runner.tick()
    drill = (await runner.drills.newest()).drill
    assert drill is not None
    assert (drill.phase, drill.steps[-1].by) == (DrillPhase.ABORTING, "duty")


@pytest.mark.parametrize("value", [b"garbage", UNAUTHENTIC])
async def test_no_drill_begins_over_one_that_cannot_be_read(world: World, runner: DrillRunner, value: bytes) -> None:
    await runner.begin(DUTY, EVACUATE)
    await put(world.store, keys.DRILL, value)
    with pytest.raises(StoreError, match="delete newest-drill"):
        await runner.begin(DUTY, EVACUATE)
    await runner.tick()
    stored = await world.store.get(keys.DRILL)
    assert stored is not None
    assert stored.value == value
    assert await runner.drills.every() == {}
