"""The load of each endpoint over all agents of a region: this agent's reservations and the other agents' load.

A reservation counts immediately and does not wait for Redis; `shared_load_exchange` publishes it to the other agents
within about 10 ms. While Redis is unreachable, the weight of the other agents' load falls to zero (`other_agents`), and
this agent's own reservations remain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

from penstock.admission.region_work import RegionWork, WorkTotal
from penstock.pools.pool_accounting import NO_LOAD, Load
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.reported_models import NO_MODELS
from regional_agent.shared_load.other_agents import OtherAgents
from regional_agent.shared_load.published_load import MAX_IDLE_MS, MAX_MODELS, MAX_REQUESTS, MAX_US, PublishedLoad


class SharedLoad:
    """The load that this agent reserves, and the last received load of the region's other agents."""

    def __init__(
        self,
        endpoints: EndpointSet,
        *,
        shared: bool = False,
        is_known: Callable[[str], bool] = lambda agent: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a view without reservations.

        Args:
            endpoints: the endpoints whose views contain the load.
            shared: whether the region has other agents to receive load from; False for the only agent of a region.
            is_known: returns whether the directory contains an agent of this region; other loads are ignored.
            clock: monotonic, in seconds.
        """
        self.shared = shared
        """Whether load is exchanged with other agents."""
        self.up = False
        """Whether the last exchange with Redis succeeded."""
        self.rejected = 0
        """Number of entries in Redis that were rejected: not published by an agent of the region, or invalid."""
        self.work = RegionWork()
        """The work that tenants receive, at this agent and at the others, and what waits there."""
        self.preemptible: Callable[[], dict[str, int]] = dict
        """Returns the running batch requests of this agent that may be preempted, by endpoint."""
        self.agent = ""
        """Name of this agent, if it publishes its load."""
        self.changed = asyncio.Event()
        """Set when this agent's load or its queues have changed since `begin_publishing`."""
        self.has_changed = False
        """Whether `changed` is set; cheaper to test on every request."""
        self._endpoints = endpoints
        self._clock = clock
        self._others = OtherAgents(is_known)
        self._remote_loads: dict[str, Load] = {}
        self.remote_batch: dict[str, int] = {}
        """The other agents' running batch requests that may be preempted, by endpoint."""
        self._has_asleep = False
        """Whether another agent published models that it lets sleep."""
        self._is_faded = False
        """Whether the weight of any remote load was below 1 when the loads were last summed."""
        self.read_at = -inf if shared else inf
        """Time (s) of the other agents' load; infinite without other agents."""

    @property
    def is_complete(self) -> bool:
        """Whether the load of all agents of the region is known."""
        return self.up or not self.shared

    def publish(self) -> None:
        """Request the publication of this agent's load and queues. Called after either has changed, unless it is due
        already (`has_changed`)."""
        self.has_changed = True
        self.changed.set()

    def begin_publishing(self) -> dict[str, tuple[int, int, int]]:
        """Return the load to publish by endpoint: requests, prefill (µs), decode (µs). Later changes set `changed`.

        The loads of two servers that had the same endpoint name in succession are added. Numbers are clamped to the
        maxima that the other agents accept.
        """
        self.changed.clear()
        self.has_changed = False
        loads: dict[str, tuple[int, int, int]] = {}
        for endpoint in self._endpoints.every():
            load = endpoint.local_load
            if load.requests:
                requests, prefill_us, decode_us = loads.get(endpoint.name, NO_LOAD)
                loads[endpoint.name] = (
                    min(MAX_REQUESTS, requests + load.requests),
                    min(MAX_US, prefill_us + load.prefill_us),
                    min(MAX_US, decode_us + load.decode_us),
                )
        return loads

    def work_totals(self) -> dict[str, list[WorkTotal]]:
        """Return the work of tenants at this agent to publish, by model."""
        return self.work.totals(self._clock())

    def idle_ms(self) -> dict[str, dict[str, int]]:
        """Return the times (ms) since this agent's last uses of models to publish, by endpoint and model."""
        now = self._clock()
        return {
            endpoint.name: {
                model: min(MAX_IDLE_MS, round(idle_s * 1000.0)) for model, idle_s in endpoint.uses.own(now).items()
            }
            for endpoint in self._endpoints.every()
            if endpoint.uses is not None
        }

    def asleep(self) -> dict[str, list[str]]:
        """Return the models that this agent lets sleep, or has just put to sleep, to publish, by endpoint."""
        every = ((each, each.reported) for each in self._endpoints.every())
        found = {
            each.name: sorted(reported.put_to_sleep(each.now()))[:MAX_MODELS]
            for each, reported in every
            if reported.falls_asleep or reported.slept_until
        }
        return {name: models for name, models in found.items() if models}

    def receive(self, published: Iterable[PublishedLoad], read_at: float) -> bool:
        """Process the loads that the other agents published; returns whether their load or queues have changed.

        Args:
            published: authenticated loads; the last load of an agent that is missing loses weight with time.
            read_at: time (s) at which the exchange began, by the clock.
        """
        self.read_at = read_at
        may_differ, now = self._is_faded, self._clock()
        for load in published:
            may_differ |= self._others.receive(load, read_at, now)
        self.remote_batch = self._others.batch()
        self._apply_asleep()
        for idle_ms in self._others.take_idle():
            self._used_elsewhere(idle_ms, read_at)
        work = self._others.take_work()
        if work:
            self.work.started_elsewhere(work, read_at)
            may_differ = True
        return may_differ and self.fade()

    def _used_elsewhere(self, idle_ms: Mapping[str, Mapping[str, int]], read_at: float) -> None:
        for endpoint in self._endpoints.every():
            if endpoint.uses is not None:
                for model, idle in idle_ms.get(endpoint.name, {}).items():
                    endpoint.uses.used_elsewhere(model, idle / 1000.0, read_at)

    def fade(self) -> bool:
        """Sum the other agents' load, weighted by its age; returns whether the sum or the queues have changed."""
        now = self._clock()
        self._is_faded = self._others.is_fading(now)
        loads, queues = self._others.total(now)
        self.remote_batch = self._others.batch()
        self._apply_asleep()
        if loads == self._remote_loads and queues == self.work.remote_queues:
            return False
        self._remote_loads, self.work.remote_queues = loads, queues
        self._endpoints.set_remote_loads(loads)
        return True

    def _apply_asleep(self) -> None:
        asleep = self._others.asleep()
        if asleep or self._has_asleep:
            self._has_asleep = bool(asleep)
            for endpoint in self._endpoints.every():
                if endpoint.reported.set_asleep_elsewhere(asleep.get(endpoint.name, NO_MODELS)):
                    self._endpoints.fall_asleep(endpoint, endpoint.reported.falls_asleep)

    def others(self) -> list[PublishedLoad]:
        """Return the newest loads of the region's other agents."""
        return self._others.counted() if self.up else []

    def is_live(self, load: PublishedLoad) -> bool:
        """Whether the agent that published a load still publishes."""
        return self._others.is_live(load)

    def age_s(self) -> float:
        """Return the age (s) of the other agents' load; inf before the first exchange, 0 without other agents."""
        return max(0.0, self._clock() - self.read_at)

    def status(self) -> dict[str, object]:
        """Return the state of the shared load for the status page."""
        age_s = self.age_s()
        return {
            "up": self.up,
            "age_s": round(age_s, 3) if age_s < inf else None,
            "other_agents": len(self._others),
            "rejected": self.rejected,
        }
