"""The asynchronous requests of a region that have not ended, and the forecasts of their starts and ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.jobs.async_request import AsyncRequest, JobState
from penstock.jobs.job_records import Claim
from penstock.jobs.queue_forecast import UNKNOWN, AgentPace, Forecast, forecast, forecast_of_running, with_time

NEW_S: Final = 10.0
"""Age (s) up to which a request that is in no list yet counts as the last one."""

FORGOTTEN_S: Final = 3600.0
"""Age (s) at which the pace of an agent that no longer writes it is removed."""


class RequestQueue:
    """The places of requests by region, and the paces of the agents that run them, as one agent last read them."""

    def __init__(self) -> None:
        """Start without a request."""
        self._places: dict[str, dict[str, int]] = {}
        """Of each region, the places of its unfinished requests."""
        self.own = AgentPace(0.0, 0, 0, {})
        self.others: list[AgentPace] = []

    def ended(self, request: AsyncRequest, elapsed_s: float) -> None:
        """Count a request that this agent has run to its end."""
        own = self.own
        self.own = AgentPace(own.at, own.running, own.limit, with_time(own.mean_s, path_of(request), elapsed_s))

    def runs(self, running: int, limit: int, now: float) -> None:
        """Count the requests that this agent runs at `now` (Unix time, s), and runs at most."""
        self.own = AgentPace(now, running, limit, self.own.mean_s)

    def ranked(self, region: str, jobs: Iterable[str]) -> None:
        """Replace the unfinished requests of a region, in the order in which they start."""
        self._places[region] = {job: place for place, job in enumerate(jobs)}

    def keep(self, regions: Iterable[str]) -> None:
        """Forget the requests of all other regions."""
        self._places = {region: self._places[region] for region in regions if region in self._places}

    @property
    def unfinished(self) -> int:
        """Number of requests that run or wait."""
        return sum(map(len, self._places.values()))

    def forecast(self, request: AsyncRequest, claim: Claim | None, state: JobState, now: float) -> Forecast:
        """When a request starts and ends, by its newest claim and its state; `now` is Unix time (s)."""
        paces, path = [self.own, *self.others], path_of(request)
        if state is JobState.IN_PROGRESS and claim is not None:
            return forecast_of_running(claim.started_at, paces, path, now)
        if state is not JobState.QUEUED:
            return UNKNOWN
        place = next((places[request.id] for places in self._places.values() if request.id in places), None)
        if place is None:
            if now - request.created_at > NEW_S:
                return UNKNOWN
            place = self.unfinished
        return forecast(place, paces, path, now)

    def waiting(self, now: float) -> tuple[int, int | None]:
        """How many requests wait, and when (Unix time, s) the last one is expected to start; None if unknown."""
        paces = [self.own, *self.others]
        waiting = self.unfinished - sum(pace.running for pace in paces)
        expected = forecast(self.unfinished - 1, paces, "", now) if waiting > 0 else UNKNOWN
        return max(0, waiting), expected.starts_at


def path_of(request: AsyncRequest) -> str:
    """The path of a request, without its query."""
    return request.target.partition("?")[0]
