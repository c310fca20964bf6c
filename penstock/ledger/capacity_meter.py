"""Counts the GPU time of a region's endpoints by GPU class, model and interval, for the share that served nothing.

The GPU time of an endpoint of several models counts in equal parts as theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

INTERVAL_S: Final = 300.0
"""Length (s) of an interval: an agent without requests puts one segment in each."""

MAX_GAP_S: Final = 5.0
"""Time (s) between two samples beyond which the rest is not counted: the process did not run and saw nothing."""


class EndpointGpus(NamedTuple):
    """The GPUs of one endpoint now."""

    gpu_class: str
    gpus: float
    is_ready: bool
    models: tuple[str, ...]
    """At least one."""


class GpuTime(NamedTuple):
    """GPU time of one class and model within one interval."""

    at_ms: int
    """Unix time (ms) of the last moment of the interval."""
    gpu_class: str
    model: str
    ready_gpu_s: float
    unready_gpu_s: float


class CapacityMeter:
    """Adds up samples; an interval is complete when a sample of a later one arrives."""

    def __init__(self) -> None:
        self._interval: int | None = None
        self._sampled_at = 0.0
        self._gpu_s: dict[tuple[str, str], list[float]] = {}

    def sample(self, endpoints: Iterable[EndpointGpus], now: float, unix_s: float) -> list[GpuTime]:
        """Count the time since the last sample with the present endpoints; returns the GPU time of a complete interval.

        Args:
            endpoints: all endpoints of the region.
            now: time (monotonic, s).
            unix_s: Unix time (s).
        """
        interval = int(unix_s // INTERVAL_S)
        elapsed_s = 0.0 if self._interval is None else min(now - self._sampled_at, MAX_GAP_S)
        self._sampled_at = now
        gpus: dict[tuple[str, str], list[float]] = {}
        for endpoint in endpoints:
            for model in endpoint.models:
                of_model = gpus.setdefault((endpoint.gpu_class, model), [0.0, 0.0])
                of_model[not endpoint.is_ready] += endpoint.gpus / len(endpoint.models)
        if self._interval is None or interval == self._interval:
            self._interval = interval
            self._add(gpus, elapsed_s)
            return []
        # The part of the time that lies in the new interval.
        new_s = min(elapsed_s, unix_s - interval * INTERVAL_S) if interval > self._interval else 0.0
        self._add(gpus, elapsed_s - new_s)
        complete = self.end()
        self._interval = interval
        self._add(gpus, new_s)
        return complete

    def end(self) -> list[GpuTime]:
        """Return the GPU time of the interval that has begun. The next sample begins anew."""
        if self._interval is None:
            return []
        at_ms = int((self._interval + 1) * INTERVAL_S * 1000) - 1
        found = [GpuTime(at_ms, *key, *seconds) for key, seconds in sorted(self._gpu_s.items()) if any(seconds)]
        self._interval, self._gpu_s = None, {}
        return found

    def _add(self, gpus: dict[tuple[str, str], list[float]], elapsed_s: float) -> None:
        for key, (ready, unready) in gpus.items():
            of_model = self._gpu_s.setdefault(key, [0.0, 0.0])
            of_model[0] += ready * elapsed_s
            of_model[1] += unready * elapsed_s
