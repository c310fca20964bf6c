"""The asynchronous requests that wait, and the paces of the agents that run them, as this agent last read them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from penstock.jobs import queue_forecast, store_paths
from penstock.jobs.async_request import AsyncRequest, JobState
from penstock.jobs.job_records import Claim
from penstock.jobs.queue_forecast import UNKNOWN, AgentPace, Forecast, forecast, forecast_of_running
from regional_agent.jobs.storage.job_storage import JobStorage, UnreadableRecord

WRITE_S: Final = 5.0
"""Minimum interval (s) at which an agent writes its pace."""

READ_S: Final = 15.0
"""Minimum interval (s) at which an agent reads the paces of others: a region with many agents has many of them."""

FORGOTTEN_S: Final = 3600.0
"""Age (s) at which the pace of an agent that no longer writes it is removed."""

NEW_S: Final = 10.0
"""Age (s) up to which a request that is in no list yet counts as the last one."""


class RequestQueue:
    """Forecasts of asynchronous requests. The store has the paces, so that they include those of other agents."""

    def __init__(self, region: str, agent: str) -> None:
        """Start without a request; `agent` is this agent's name in its region."""
        self._path = store_paths.pace(region, agent)
        self._folder = store_paths.paces(region)
        self._places: dict[str, dict[str, int]] = {}
        """Of each region, the places of its unfinished requests."""
        self._paces: list[AgentPace] = []
        self._own = AgentPace(0.0, 0, 0, {})
        self._is_written = True
        self._write_at = self._read_at = 0.0
        """Monotonic times (s) of the next write, and of the next look at the paces of others."""

    def ended(self, request: AsyncRequest, elapsed_s: float) -> None:
        """Count a request that this agent has run to its end."""
        means = queue_forecast.with_time(self._own.mean_s, path_of(request), elapsed_s)
        self._own = AgentPace(self._own.at, self._own.running, self._own.limit, means)
        self._is_written = False

    def ranked(self, region: str, jobs: Iterable[str]) -> None:
        """Replace the unfinished requests of a region, in the order in which they start."""
        self._places[region] = {job: place for place, job in enumerate(jobs)}

    def keep(self, regions: Iterable[str]) -> None:
        """Forget the requests of all other regions."""
        self._places = {region: self._places[region] for region in regions if region in self._places}

    async def exchange(self, storage: JobStorage, running: int, limit: int) -> None:
        """Write the pace of this agent, and read those of others while requests wait.

        Raises:
            StoreUnavailable: the paces stay as they were.
        """
        now, at = time.time(), time.monotonic()
        self._own = AgentPace(now, running, limit, self._own.mean_s)
        if (running or not self._is_written) and at >= self._write_at:
            self._write_at, self._is_written = at + WRITE_S, running == 0
            await storage.put_record(self._path, self._own)
        if self._unfinished <= running or at < self._read_at:
            return
        self._read_at = at + READ_S
        paces = []
        for each in await storage.list(self._folder):
            try:
                pace = None if each.path == self._path else await storage.find_record(each.path, AgentPace)
            except UnreadableRecord:
                # Of another release.
                continue
            if pace is not None and now - pace.at > FORGOTTEN_S:
                await storage.delete(each.path)
            elif pace is not None:
                paces.append(pace)
        self._paces = paces

    @property
    def _unfinished(self) -> int:
        return sum(map(len, self._places.values()))

    def forecast(self, request: AsyncRequest, claim: Claim | None, state: JobState, now: float) -> Forecast:
        """Return when a request starts and ends, by its newest claim and its state; `now` is Unix time (s)."""
        paces, path = [self._own, *self._paces], path_of(request)
        if state is JobState.IN_PROGRESS and claim is not None:
            return forecast_of_running(claim.started_at, paces, path, now)
        if state is not JobState.QUEUED:
            return UNKNOWN
        place = next((places[request.id] for places in self._places.values() if request.id in places), None)
        if place is None:
            if now - request.created_at > NEW_S:
                return UNKNOWN
            place = self._unfinished
        return forecast(place, paces, path, now)

    def status(self, now: float) -> dict[str, Any]:
        """Return what the status page shows of the requests that wait."""
        paces = [self._own, *self._paces]
        waiting = self._unfinished - sum(pace.running for pace in paces)
        expected = forecast(self._unfinished - 1, paces, "", now) if waiting > 0 else UNKNOWN
        return {"waiting_requests": max(0, waiting), "last_request_starts_at": expected.starts_at}


def path_of(request: AsyncRequest) -> str:
    """Return the path of a request, without its query."""
    return request.target.partition("?")[0]
