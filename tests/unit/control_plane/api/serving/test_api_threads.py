"""A caller uses one thread of the API at a time."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context

from control_plane.api.serving.api_threads import THREADS, in_api_thread, working_for
from tests.support.wait import PATIENCE_S


def work_for(caller: str, gate: threading.Event | None = None) -> asyncio.Task[bool]:
    """A task that waits in a thread for the gate, if there is one."""

    async def work() -> bool:
        working_for.set(caller)
        return await in_api_thread(lambda: gate is None or gate.wait(PATIENCE_S))

    return asyncio.create_task(work(), context=copy_context())


async def test_a_caller_with_much_work_keeps_no_other_waiting() -> None:
    gate = threading.Event()
    much = [work_for("greedy", gate) for _ in range(THREADS + 3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await work_for("modest")
    assert not any(task.done() for task in much)
    gate.set()
    assert all(await asyncio.gather(*much))
