"""Sends a workload when it is due, open loop: how slow answers are changes nothing about when requests are sent.

A closed loop waits for a slow server before it asks again, so it asks least when answers are worst, and its
percentiles leave out what real users would have felt (coordinated omission: Tene, "How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from lab.replay.client import Client, Patience
from lab.replay.entry import Entry
from lab.replay.journey import Journey
from lab.replay.outcome import Outcome
from lab.replay.replay_workload import PlannedRequest

MAX_IN_FLIGHT = 20_000
"""Requests under way at a time; further ones fail with the code "replayer_full", so the limit shows if it is met."""


class Replayer:
    """One replay of one workload."""

    def __init__(
        self,
        workload: Sequence[PlannedRequest],
        entries: Mapping[str, Sequence[Entry]],
        patience: Patience | None = None,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """Prepare a replay.

        Args:
            workload: what to send, in any order.
            entries: ways in by site name, nearest first; every site of the workload needs some.
            patience: how long clients wait.
            on_outcome: called with each outcome as it comes, to watch the replay live.

        Raises:
            BadUrl: an entry's URL cannot be used.
            KeyError: a site of the workload has no entries.
        """
        for planned in workload:
            if not entries[planned.site]:
                raise KeyError(planned.site)
        self._workload = sorted(workload, key=lambda planned: planned.at_s)
        self._client = Client(entries, patience or Patience(), self.now_s)
        self._on_outcome = on_outcome
        self._began_s = monotonic()
        self._under_way: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None
        self.sent = 0
        """Requests taken up so far."""

    @property
    def in_flight(self) -> int:
        """Requests under way now."""
        return len(self._under_way)

    def now_s(self) -> float:
        """Time (s) since the replay began, by the clock that outcomes are noted in."""
        return monotonic() - self._began_s

    async def run(self, drain_s: float, began_s: float | None = None) -> None:
        """Send each request when it is due, then wait for requests in flight.

        Args:
            drain_s: how long (s) to wait after the last request was due; what is unanswered then has failed.
            began_s: the moment (time.monotonic) that the workload's times count from; None is now. Before it, health
                checks run and nothing is sent.
        """
        self._began_s = monotonic() if began_s is None else began_s
        self._client.start()
        try:
            for planned in self._workload:
                # uvloop counts in milliseconds, so a sleep may end a part of one too soon.
                while (early_s := planned.at_s - self.now_s()) > 0:  # noqa: ASYNC110 - time is what it waits for
                    await asyncio.sleep(early_s)
                self._send(planned)
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=drain_s)
        finally:
            await self._end()
        if self._defect is not None:
            raise self._defect

    async def _end(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._client.close()

    def _send(self, planned: PlannedRequest) -> None:
        self.sent += 1
        if len(self._under_way) >= MAX_IN_FLIGHT:
            journey = Journey(planned, self.now_s())
            journey.is_lost("replayer_full", self.now_s())
            self._on_outcome(journey.outcome(self.now_s()))
            return
        task = asyncio.get_running_loop().create_task(self._perform(planned))
        self._under_way.add(task)
        task.add_done_callback(self._done)

    async def _perform(self, planned: PlannedRequest) -> None:
        self._on_outcome(await self._client.perform(planned))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        # A defect of the replayer must not pass for a request that was lost.
        if not task.cancelled() and task.exception() is not None:
            self._defect = task.exception()
