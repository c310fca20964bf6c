"""A run starts at once after an election, and after a policy that arrives during a run."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.store import keys
from adapters.store.config_store import Committed, Delete, Put, SameKey, Unchanged
from control_plane import daemon
from lab.memory_store import MemoryStore
from penstock.fleet import snapshot
from tests.support.api_app import new_control_plane
from tests.support.paths import PLANET
from tests.support.wait import until


class Slow(MemoryStore):
    """Accepts plans when a test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.go_on = asyncio.Event()

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        if any(operation.key.startswith(keys.PLANS) for operation in do):
            self.held.set()
            await self.go_on.wait()
        return await super().commit(expect, do)


async def test_an_elected_leader_plans_without_waiting_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "TICK_S", 3600.0)
    store = MemoryStore()
    control_plane = new_control_plane(store)
    await control_plane.start()
    try:
        await until(lambda: control_plane.metrics.registry.get_sample_value("penstock_leader") == 1)
    finally:
        await control_plane.stop()
        await store.close()


async def test_a_policy_that_arrives_during_a_run_is_planned_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No run is scheduled, and none waits for reports of regions.
    monkeypatch.setattr(daemon, "TICK_S", 3600.0)
    monkeypatch.setattr(snapshot, "SETTLE_S", 0.0)
    folder = Path(shutil.copytree(PLANET, tmp_path / "bundle"))
    text = (folder / "spillover.yaml").read_text()
    store = Slow()
    control_plane = new_control_plane(store, policies=folder)

    source = control_plane.policies

    async def accept(utilisation: str) -> str:
        before = source.current
        (folder / "spillover.yaml").write_text(text.replace("0.8", utilisation))
        await until(lambda: source.current is not before)
        assert source.current is not None
        return source.current.digest()

    def candidate() -> str:
        return control_plane.rollouts.active.rollout.candidate if control_plane.rollouts.active is not None else ""

    await control_plane.start()
    try:
        await until(lambda: control_plane.elector.epoch is not None and control_plane.overrides.known)
        await accept("0.7")
        await until(store.held.is_set)
        newest = await accept("0.6")
        assert candidate() != newest
        store.go_on.set()
        await until(lambda: candidate() == newest)
    finally:
        store.go_on.set()
        await control_plane.stop()
        await store.close()
