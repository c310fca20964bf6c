"""When the policy source is looked at: at its own pace, at once where somebody says that it changed, soon if unread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from control_plane.planning.periodic_job import PeriodicJob

RETRY_S = 5.0
"""A source that could not be read is looked at again after this long (s), where that is sooner."""

MIN_PAUSE_S = 0.5
"""However often somebody says so, two looks begin at least this long (s) apart."""


class PolicyPolling:
    """Looks now and then, one look at a time.

    Args:
        look: one look; whether the source could be read.
        every_s: time between two looks, in seconds.
    """

    def __init__(self, look: Callable[[], Awaitable[bool]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._rounds = PeriodicJob(self._once, every_s, apart_s=MIN_PAUSE_S)

    def start(self, scheduler: AsyncIOScheduler) -> None:
        """Begin to look."""
        self._rounds.start(scheduler)

    def wake(self) -> None:
        """Look at once, or once more after the look under way: it may have begun before what changed."""
        self._rounds.wake()

    async def _once(self) -> None:
        if not await self._look() and self._every_s > RETRY_S:
            self._rounds.again_after(RETRY_S)
