"""When an asynchronous request starts and ends: by its place in the queue, and the rate at which agents end requests.

As of a batch, the forecast is what is left divided by the rate so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

MAX_PACE_AGE_S: Final = 60.0
"""Age (s) from which what an agent wrote of itself no longer counts."""

MAX_PATHS: Final = 32
"""Maximum number of paths of requests whose times are known."""

_WEIGHT: Final = 0.2
"""Weight of the last request in a mean time."""


class AgentPace(msgspec.Struct, frozen=True):
    """What one agent runs of asynchronous requests, as it writes it to the job store."""

    at: float
    """Unix time (s)."""
    running: int
    limit: int
    """Requests that the agent runs at a time at most."""
    mean_s: dict[str, float]
    """Mean times (s) of its last requests, from claim to end, by path; of all of them with an empty path."""


class Forecast(NamedTuple):
    """Unix times (s); None if unknown. They may be after the deadline, when requests expire."""

    starts_at: int | None = None
    ends_at: int | None = None


UNKNOWN: Final = Forecast()


def with_time(mean_s: Mapping[str, float], path: str, elapsed_s: float) -> dict[str, float]:
    """Mean times after a further request; those of the paths that were seen last are kept."""
    found = {known: time_s for known, time_s in mean_s.items() if known not in ("", path)}
    for known in ("", path):
        found[known] = mean_s[known] + _WEIGHT * (elapsed_s - mean_s[known]) if known in mean_s else elapsed_s
    while len(found) > MAX_PATHS + 1:
        del found[next(known for known in found if known)]
    return found


def forecast(place: int, paces: Sequence[AgentPace], path: str, now: float) -> Forecast:
    """Forecast a request that waits.

    Args:
        place: unfinished requests that start before it, those that run included.
        paces: of the agents that run the requests of its region.
        path: path of the request.
        now: Unix time (s).
    """
    recent = [each for each in paces if now - each.at < MAX_PACE_AGE_S]
    places = sum(max(each.limit, each.running) for each in recent)
    starts_at = now
    if place >= places:
        per_s = sum(each.running / max(1e-3, each.mean_s[""]) for each in recent if "" in each.mean_s)
        if per_s <= 0.0:
            return UNKNOWN
        starts_at += (place - places + 1) / per_s
    time_s = _time_s(recent, path)
    return Forecast(int(starts_at), None if time_s is None else int(starts_at + time_s))


def forecast_of_running(started_at: float, paces: Sequence[AgentPace], path: str, now: float) -> Forecast:
    """Forecast a request that an agent has started at a Unix time (s); see `forecast`. One that takes longer than the
    mean has no forecast."""
    time_s = _time_s([each for each in paces if now - each.at < MAX_PACE_AGE_S], path)
    ends_at = None if time_s is None or started_at + time_s < now else int(started_at + time_s)
    return Forecast(int(started_at), ends_at)


def _time_s(paces: Sequence[AgentPace], path: str) -> float | None:
    """Mean time (s) of the requests with a path, or of all requests if it has none."""
    for known in (path, ""):
        found = [each.mean_s[known] for each in paces if known in each.mean_s]
        if found:
            return sum(found) / len(found)
    return None
