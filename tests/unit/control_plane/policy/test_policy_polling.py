"""Looks at the policy source: at once when somebody says so, and once more when they say so meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from control_plane.policy.source import policy_polling
from control_plane.policy.source.policy_polling import PolicyPolling
from tests.support.wait import until


class Looks:
    """Counts looks, which last as long as a test wants."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.readable = True

    async def __call__(self) -> bool:
        self.begun += 1
        await self.go_on.wait()
        self.ended += 1
        return self.readable


async def test_it_looks_at_once_when_it_is_woken(scheduler: AsyncIOScheduler) -> None:
    looks = Looks()
    polling = PolicyPolling(looks, 3600.0)
    polling.start(scheduler)
    polling.wake()
    await until(lambda: looks.ended == 1)


async def test_what_wakes_it_during_a_look_is_one_more_look(scheduler: AsyncIOScheduler) -> None:
    looks = Looks()
    looks.go_on.clear()
    polling = PolicyPolling(looks, 3600.0)
    polling.start(scheduler)
    polling.wake()
    await until(lambda: looks.begun == 1)
    for _ in range(20):
        polling.wake()
    assert looks.begun == 1
    looks.go_on.set()
    await until(lambda: looks.ended == 2)
    polling.wake()
    await until(lambda: looks.ended == 3)
    assert looks.begun == 3


async def test_what_wakes_it_during_a_look_that_takes_long_is_not_lost(
    scheduler: AsyncIOScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pause is over when the look is.
    monkeypatch.setattr(policy_polling, "MIN_PAUSE_S", 0.0)
    looks = Looks()
    looks.go_on.clear()
    polling = PolicyPolling(looks, 3600.0)
    polling.start(scheduler)
    polling.wake()
    await until(lambda: looks.begun == 1)
    polling.wake()
    looks.go_on.set()
    await until(lambda: looks.ended == 2)


async def test_what_wakes_it_before_it_begins_is_not_lost(scheduler: AsyncIOScheduler) -> None:
    looks = Looks()
    polling = PolicyPolling(looks, 3600.0)
    polling.wake()
    polling.start(scheduler)
    await until(lambda: looks.ended == 1)


async def test_a_source_that_cannot_be_read_is_looked_at_again_sooner(
    scheduler: AsyncIOScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_polling, "RETRY_S", 0.02)
    looks = Looks()
    looks.readable = False
    polling = PolicyPolling(looks, 3600.0)
    polling.start(scheduler)
    polling.wake()
    await until(lambda: looks.ended == 3)
    looks.readable = True
    await until(lambda: looks.ended >= 4)
