"""A control plane that is told to stop in the middle of publishing ends without crying about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from control_plane.client import keys
from control_plane.client.members import Member
from control_plane.client.memory import MemoryStore
from control_plane.client.store import Committed, Delete, Put, SameKey, Unchanged
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import FolderReader
from control_plane.policy_source import PolicySource
from tests.patience import PATIENCE_S
from tests.reports import KEY

PLANET = Path(__file__).parents[2] / "policies" / "planet"


class HeldUp(MemoryStore):
    """Never gets a plan written."""

    def __init__(self) -> None:
        super().__init__()
        self.holding = asyncio.Event()

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        if any(one.key.startswith(keys.PLANS) for one in do):
            self.holding.set()
            await asyncio.Event().wait()
        return await super().commit(expect, do)


async def test_a_tick_that_is_cut_short_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    store = HeldUp()
    one = ControlPlane(
        store, Member("north", "http://north"), key=KEY, policies=PolicySource(FolderReader(PLANET)), rng=Random(1)
    )
    await one.start()
    async with asyncio.timeout(PATIENCE_S):
        await store.holding.wait()
        await one.stop()
    # What the scheduler cancelled tells of its end in a callback.
    for _ in range(10):
        await asyncio.sleep(0)
    await store.close()
    assert "raised an exception" not in caplog.text
