"""Records the GPU time of the region's endpoints in the ledger, a record for each GPU class, model and interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.cost.gpu_time import gpus_of
from penstock.ledger.capacity_meter import CapacityMeter, EndpointGpus
from penstock.policy.policy import Policy
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.ledger.request_ledger import RequestLedger

PERIOD_S: Final = 1.0
"""Interval (s) between samples."""


class CapacityRecorder:
    """Samples the endpoints while the ledger is on. Every agent of a region does; readers count the region once."""

    def __init__(
        self,
        ledger: RequestLedger,
        endpoints: Callable[[], Iterable[Endpoint]],
        policy: Callable[[], Policy | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a recorder.

        Args:
            endpoints: returns all endpoints of the region.
            policy: returns the policy in force, whose models have a number of GPUs.
        """
        self._ledger = ledger
        self._endpoints = endpoints
        self._policy = policy
        self._clock = clock
        self._wall_clock = wall_clock
        self._meter = CapacityMeter()

    async def keep_recording(self) -> None:
        """Sample each second until cancelled."""
        while True:
            await sleep_until_tick(PERIOD_S)
            self.sample()

    def sample(self) -> None:
        """Count the time since the last sample, and record a complete interval."""
        if not self._ledger.is_on:
            self._meter.end()
            return
        self._ledger.capacity(self._meter.sample(self._gpus(), self._clock(), self._wall_clock()))

    def close(self) -> None:
        """Record the interval that has begun."""
        self._ledger.capacity(self._meter.end())

    def _gpus(self) -> Iterator[EndpointGpus]:
        policy = self._policy()
        models = {} if policy is None else policy.models
        for endpoint in self._endpoints():
            if endpoint.spec.burst:
                continue
            # An endpoint of several models has the GPUs of the largest of them.
            gpus = max((gpus_of(models.get(name)) for name in endpoint.spec.models), default=1.0)
            view = endpoint.view
            yield EndpointGpus(endpoint.spec.accelerator, gpus, view.ready and not view.draining, endpoint.spec.models)
