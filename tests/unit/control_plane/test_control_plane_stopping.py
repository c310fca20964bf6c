"""A control plane that is stopped while it publishes ends without errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from adapters.store import keys
from adapters.store.config_store import Committed, Delete, Put, SameKey, Unchanged
from lab.memory_store import MemoryStore
from tests.support.api_app import new_control_plane
from tests.support.wait import PATIENCE_S


class HeldUp(MemoryStore):
    """Never completes a write of plans."""

    def __init__(self) -> None:
        super().__init__()
        self.holding = asyncio.Event()

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        if any(operation.key.startswith(keys.PLANS) for operation in do):
            self.holding.set()
            await asyncio.Event().wait()
        return await super().commit(expect, do)


async def test_a_cancelled_tick_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    store = HeldUp()
    control_plane = new_control_plane(store)
    await control_plane.start()
    async with asyncio.timeout(PATIENCE_S):
        await store.holding.wait()
        await control_plane.stop()
    # A job that the scheduler cancels ends in a callback.
    for _ in range(10):
        await asyncio.sleep(0)
    await store.close()
    assert caplog.text == ""
