"""A fault while a batch runs: whether each request has exactly one result, and how often engines ran it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import httpx

from lab.demo.batches.batch_scene import NIGHT_REGION, BatchStage, PlannedBatch
from lab.demo.findings import Measured
from lab.demo.records import BatchScene
from lab.planet.planet import Planet
from penstock.jobs.claims import LEASE_S

REQUESTS: Final = 40
"""Number of requests: enough to last until the fault ends."""

LEAD_S: Final = 7.0
"""Time (s) from the first result to the fault; longer than the load before it."""

BEGINS_WITHIN_S: Final = 30.0
"""Time (s) for the first result."""

ENDS_WITHIN_S: Final = 120.0
"""Time (s) for the whole batch."""


class DuringBatch:
    """A fault while a batch of the region NIGHT_REGION runs, which begins a moment before."""

    def __init__(self, fault: Callable[[Planet], Callable[[], None]], max_runs: int) -> None:
        """Prepare the fault.

        Args:
            fault: injects the fault.
            max_runs: maximum number of engine runs of one request.
        """
        self._fault = fault
        self._max_runs = max_runs
        self._began_at = self._injected_s = 0.0
        self._scene: Future[BatchScene] | None = None

    def prepare(self, planet: Planet) -> float:
        """Create the batch, and wait for its first result; return the time (s) until the fault begins."""
        self._began_at = time.monotonic()
        stage = BatchStage(planet, PlannedBatch(NIGHT_REGION, "open", REQUESTS, 0.0), self._now)
        threads = ThreadPoolExecutor(1)
        self._scene = threads.submit(lambda: asyncio.run(stage.run(ENDS_WITHIN_S)))
        threads.shutdown(wait=False)
        while not (stage.completed or self._scene.done()) and self._now() < BEGINS_WITHIN_S:
            time.sleep(0.1)
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], None]:
        """Inject the fault."""
        self._injected_s = self._now()
        return self._fault(planet)

    def conclude(self) -> Measured:
        """Wait for the end of the batch; return the number of its results, 0 if it is not as promised."""
        assert self._scene is not None
        try:
            scene = self._scene.result()
        except (RuntimeError, httpx.HTTPError) as error:
            return Measured(0, f"the batch was not created, or its results cannot be read: {error}")
        return judge_batch(scene, self._injected_s, self._max_runs)

    def _now(self) -> float:
        return time.monotonic() - self._began_at


class StoreLost(DuringBatch):
    """The loss of the job store of NIGHT_REGION for longer than a claim is valid, so that the batch stops meanwhile.

    It begins before the load, which takes less time.
    """

    def __init__(self) -> None:
        super().__init__(lambda planet: self._lift, max_runs=2)
        self._lift = lambda: None

    def prepare(self, planet: Planet) -> float:
        """Create the batch, and lose the store once it has a result; return the time (s) until the fault counts."""
        lead_s = super().prepare(planet)
        store = planet.directory / "jobs" / NIGHT_REGION
        away = store.rename(store.with_suffix(".away"))
        # Not an empty folder, which would be an empty store.
        store.write_text("")

        def lift() -> None:
            store.unlink()
            away.rename(store)

        self._lift = lift
        time.sleep(LEASE_S)
        return lead_s


def judge_batch(scene: BatchScene, injected_s: float, max_runs: int) -> Measured:
    """Return the number of results of a batch, 0 if it is not as promised.

    Args:
        injected_s: time (s) of the fault, on the clock of the scene.
        max_runs: maximum number of engine runs of one request.
    """
    written = Counter((*scene.output, *scene.errors))
    once = written == Counter(f"line-{number}" for number in range(scene.requests))
    most, least = max(scene.engine_runs, default=0), min(scene.engine_runs, default=0)
    ran = least >= 1 and most <= max_runs and not scene.outside
    holds = once and ran and scene.status == "completed" and not scene.errors and scene.ended_at_s > injected_s
    says = (
        f"batch of {scene.requests}: {scene.status}, {scene.ended_at_s - injected_s:.1f} s after the fault began; "
        f"{len(written)} custom_ids in the results, {sum(written.values()) - len(written)} twice, {len(scene.errors)} "
        f"errors; {sum(runs - 1 for runs in scene.engine_runs)} extra engine runs, {most} runs at most of one request "
        f"(permitted: {max_runs}), {scene.outside} outside residency"
    )
    return Measured(len(scene.output) if holds else 0, says)
