"""Utilisation, imbalance and computing time of engines during a workload, from the engines' metrics."""

from __future__ import annotations

import asyncio
import re
from statistics import fmean, pstdev

import httpx
import msgspec

INTERVAL_S = 0.4
"""Time (s) between two samples of every engine."""

_FIGURES = re.compile(
    rb"^(?:vllm|lab):(num_requests_running|num_requests_waiting|busy_seconds_total|prefix_cache_queries_total"
    rb"|prefix_cache_hits_total)\{[^}]*\} ([0-9.e+-]+)$",
    re.MULTILINE,
)


class EngineUse(msgspec.Struct, frozen=True):
    """Use of all engines during a run. A seat is one of the requests that an engine can run concurrently."""

    mean: float
    """Mean share of occupied seats."""
    imbalance: float
    """Standard deviation, between engines, of requests per seat (waiting included); mean over samples."""
    gpu_s: float = 0.0
    """Total computing time of all engines for all requests (s of the modelled hardware)."""
    cached_share: float = 0.0
    """Share of prompt tokens that were found in prefix caches."""


class EngineWatch:
    """Samples the load of engines periodically.

    Args:
        urls: URLs of the engines.
        seats: number of requests that each engine runs concurrently.
    """

    def __init__(self, urls: list[str], seats: int) -> None:
        self._urls = urls
        self._seats = seats
        self._samples: list[list[tuple[float, float]]] = []
        """Running and waiting requests, by sample and engine."""

    async def watch(self) -> None:
        """Sample until cancelled."""
        async with httpx.AsyncClient(timeout=2.0) as client:
            while True:
                began = asyncio.get_running_loop().time()
                answers = await asyncio.gather(*(client.get(f"{url}/metrics") for url in self._urls))
                self._samples.append([_running_and_waiting(answer.content) for answer in answers])
                await asyncio.sleep(max(0.0, began + INTERVAL_S - asyncio.get_running_loop().time()))

    async def use(self) -> EngineUse:
        """Return the use so far, including the engines' totals."""
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
    """Compute the use from samples of (running, waiting), by sample and engine."""
    if not samples:
        return EngineUse(0.0, 0.0)
    by_engine = [fmean(running / seats for running, _ in loads) for loads in zip(*samples, strict=True)]
    imbalance = fmean(pstdev((running + waiting) / seats for running, waiting in moment) for moment in samples)
    return EngineUse(
        mean=round(fmean(by_engine), 4),
        imbalance=round(imbalance, 4),
    )


def _running_and_waiting(metrics: bytes) -> tuple[float, float]:
    found = _figures(metrics)
    return found.get(b"num_requests_running", 0.0), found.get(b"num_requests_waiting", 0.0)


def _figures(metrics: bytes) -> dict[bytes, float]:
    return {name: float(value) for name, value in _FIGURES.findall(metrics)}
