"""Utilisation and imbalance of engines during a workload, and what it cost them, from the engines' metrics."""

from __future__ import annotations

import asyncio
import re
from statistics import fmean, pstdev

import httpx
import msgspec

INTERVAL_S = 0.4
"""Between two looks at every engine (s)."""

_FIGURES = re.compile(
    rb"^(?:vllm|lab):(num_requests_running|num_requests_waiting|busy_seconds_total|prefix_cache_queries_total"
    rb"|prefix_cache_hits_total)\{[^}]*\} ([0-9.e+-]+)$",
    re.MULTILINE,
)


class EngineUse(msgspec.Struct, frozen=True):
    """Over all engines and the whole of a run; a seat is one of the requests that an engine runs at once."""

    mean: float
    """Part of all seats that was taken."""
    deviation_between_engines: float
    """Standard deviation, between engines, of the part of its seats that each had taken on average."""
    imbalance: float
    """Standard deviation, between engines at one moment, of requests on them (waiting included) over seats; the mean of
    all moments."""
    waiting: float
    """Requests that waited in some engine though another had a free seat, on average."""
    gpu_s: float = 0.0
    """Time (s of the modelled hardware) in which engines computed, together, for all requests from first to last."""
    cached_share: float = 0.0
    """Part of the prompt tokens that prefix caches had."""


class EngineWatch:
    """Looks at engines again and again until it is stopped.

    Args:
        urls: of each engine.
        seats: requests that each runs at once.
    """

    def __init__(self, urls: list[str], seats: int) -> None:
        self._urls = urls
        self._seats = seats
        self._samples: list[list[tuple[float, float]]] = []
        """Moment by moment, engine by engine: running and waiting."""

    async def watch(self) -> None:
        """Until cancelled."""
        async with httpx.AsyncClient(timeout=2.0) as client:
            while True:
                began = asyncio.get_running_loop().time()
                answers = await asyncio.gather(*(client.get(f"{url}/metrics") for url in self._urls))
                self._samples.append([_running_and_waiting(answer.content) for answer in answers])
                await asyncio.sleep(max(0.0, began + INTERVAL_S - asyncio.get_running_loop().time()))

    async def use(self) -> EngineUse:
        """Return the figures, with the engines' totals until now."""
        async with httpx.AsyncClient(timeout=5.0) as client:
            answers = await asyncio.gather(*(client.get(f"{url}/metrics") for url in self._urls))
        totals = [_figures(answer.content) for answer in answers]
        busy_s, queried, hit = (
            sum(total.get(name, 0.0) for total in totals)
            for name in (b"busy_seconds_total", b"prefix_cache_queries_total", b"prefix_cache_hits_total")
        )
        cached_share = round(hit / queried, 4) if queried else 0.0
        return msgspec.structs.replace(
            use_of(self._samples, self._seats), gpu_s=round(busy_s, 2), cached_share=cached_share
        )


def use_of(samples: list[list[tuple[float, float]]], seats: int) -> EngineUse:
    """The figures of samples, moment by moment and engine by engine: (running, waiting)."""
    if not samples:
        return EngineUse(0.0, 0.0, 0.0, 0.0)
    by_engine = [fmean(running / seats for running, _ in loads) for loads in zip(*samples, strict=True)]
    imbalance = fmean(pstdev((running + waiting) / seats for running, waiting in moment) for moment in samples)
    return EngineUse(
        mean=round(fmean(by_engine), 4),
        deviation_between_engines=round(pstdev(by_engine), 4),
        imbalance=round(imbalance, 4),
        waiting=round(fmean(_needlessly_waiting(moment, seats) for moment in samples), 3),
    )


def _needlessly_waiting(moment: list[tuple[float, float]], seats: int) -> float:
    free = sum(max(0.0, seats - running) for running, _ in moment)
    return min(free, sum(waiting for _, waiting in moment))


def _running_and_waiting(metrics: bytes) -> tuple[float, float]:
    found = _figures(metrics)
    return found.get(b"num_requests_running", 0.0), found.get(b"num_requests_waiting", 0.0)


def _figures(metrics: bytes) -> dict[bytes, float]:
    return {name: float(value) for name, value in _FIGURES.findall(metrics)}
