import asyncio

import pytest
from structlog.testing import capture_logs

from regional_agent import background_tasks
from regional_agent.background_tasks import cancel, keep_running, until_tick_s, wait_for_event


async def test_logs_and_restarts_a_failed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "RESTART_AFTER_S", 0.01)
    runs = 0
    third = asyncio.Event()

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise RuntimeError("a defect")
        third.set()
        await asyncio.Event().wait()

    with capture_logs() as logs:
        task = keep_running("the loop", loop)
        async with asyncio.timeout(60):
            await third.wait()
    await cancel([task])
    assert [(entry["loop"], entry["log_level"]) for entry in logs] == [("the loop", "error")] * 2


async def test_repeats_a_cancellation_that_a_task_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "REPEAT_CANCEL_S", 0.01)
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 3:
                    raise

    task = keep_running("deaf", deaf)
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await cancel([task])
    assert task.cancelled()


async def test_cancelling_nothing_returns() -> None:
    await cancel([])


@pytest.mark.parametrize("now", [1_000.0, 1_000.03, 1_000.0999, 1_000.1001, 1_000.149])
def test_loops_of_the_same_period_wake_at_the_same_ticks(now: float) -> None:
    wakes_at = now + until_tick_s(now, 0.1)
    assert wakes_at / 0.1 == pytest.approx(round(wakes_at / 0.1))
    assert 0.049 < wakes_at - now < 0.151
    assert now + until_tick_s(now, 0.5) == pytest.approx(1_000.5)


async def test_wait_for_event_respects_both_bounds() -> None:
    clock = asyncio.get_running_loop().time
    wake = asyncio.Event()
    began_at = clock()
    await wait_for_event(wake, at_least_s=0.0, at_most_s=0.02)
    assert clock() - began_at > 0.01, "nobody woke it"

    wake.set()
    async with asyncio.timeout(60):
        await wait_for_event(wake, at_least_s=0.0, at_most_s=60.0)
        began_at = clock()
        await wait_for_event(wake, at_least_s=0.02, at_most_s=60.0)
    assert clock() - began_at > 0.01
