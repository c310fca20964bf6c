"""Sends a workload open loop: each request is sent at its due time, regardless of the latency of earlier requests.

A closed loop waits for a slow server before it sends the next request. It sends the fewest requests when latency is
highest, so its percentiles omit latency that users observe (coordinated omission: Tene, "How NOT to Measure Latency",
2013).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from lab.replay.client import Client, Patience
from lab.replay.entry import Entry
from lab.replay.outcome import Outcome
from lab.replay.replay_workload import PlannedRequest
from lab.replay.request_progress import RequestProgress

MAX_IN_FLIGHT = 20_000
"""Maximum number of requests in flight; further requests fail with the code "replayer_full"."""


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
            workload: requests to send, in any order.
            entries: entries by site name, nearest first; at least one for every site of the workload.
            patience: timeouts of clients.
            on_outcome: called with the outcome of each request when the request ends.

        Raises:
            BadUrl: the URL of an entry is invalid.
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
        """Number of requests started so far."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return len(self._under_way)

    def now_s(self) -> float:
        """Time (s) since the start of the replay, on the clock of outcomes."""
        return monotonic() - self._began_s

    async def run(self, drain_s: float, began_s: float | None = None) -> None:
        """Send each request when it is due, then wait for requests in flight.

        Args:
            drain_s: time (s) to wait after the last request was due; requests without a response then fail.
            began_s: start of the workload (time.monotonic); None for now. Before the start, only health checks run.
        """
        self._began_s = monotonic() if began_s is None else began_s
        self._client.start()
        try:
            for planned in self._workload:
                # uvloop's timers have a resolution of 1 ms, so a sleep may end too early.
                while (early_s := planned.at_s - self.now_s()) > 0:  # noqa: ASYNC110 - waits for a time, not an event
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
            progress = RequestProgress(planned, self.now_s())
            progress.record_loss("replayer_full", self.now_s())
            self._on_outcome(progress.outcome(self.now_s()))
            return
        task = asyncio.get_running_loop().create_task(self._perform(planned))
        self._under_way.add(task)
        task.add_done_callback(self._done)

    async def _perform(self, planned: PlannedRequest) -> None:
        self._on_outcome(await self._client.perform(planned))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        # A defect of the replayer must not be counted as a lost request.
        if not task.cancelled() and task.exception() is not None:
            self._defect = task.exception()
