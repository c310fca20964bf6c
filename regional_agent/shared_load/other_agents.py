"""The newest load of each other agent of the region, and the sum of these loads, weighted by age.

An agent is live while the sequence number of its loads grows, whether or not Redis still stores a load. The load of an
agent whose number no longer grows loses weight and is removed after LEASE_S. Keys that are evicted, flushed or lost in
a failover therefore reduce the sum gradually, and an old entry that is written again is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.admission.region_work import Difference, RemoteQueue, differences
from penstock.fleet.shared_counts import LEASE_S, weight_at_age, weighted_count
from penstock.pools.pool_accounting import NO_LOAD, Load
from regional_agent.shared_load.published_load import PublishedLoad

MAX_NUMBERS = 4096
"""Maximum number of agent starts whose last sequence number is stored to detect replays; the oldest is evicted."""

AgentStart = tuple[str, int]
"""Name and epoch of an agent. While an old process finishes its requests, its load and its successor's both count."""


class _Received(NamedTuple):
    load: PublishedLoad
    queues: dict[str, RemoteQueue]
    """The queues of the agent, by model."""
    at: float
    """Time (s) at which the load was asked for."""
    counts: bool
    """Whether the load is part of the sum: the directory contained the agent at a time since its first load."""


class OtherAgents:
    """The loads that the other agents of the region have published."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        """Create an empty collection.

        Args:
            is_known: returns whether the directory of agents contains an agent of this region. Such an agent counts as
                long as it publishes without interruption, even after its registration has expired.
        """
        self._is_known = is_known
        self._live: dict[AgentStart, _Received] = {}
        self._work: list[Difference] = []
        """Work that tenants received at the other agents since `take_work`."""
        self._idle_ms: list[dict[str, dict[str, int]]] = []
        """The last uses of models that were received since `take_idle`."""
        self._numbers: dict[AgentStart, int] = {}
        """Last sequence number of each start, least recently received first."""

    def __len__(self) -> int:
        """Return the number of agents whose load is part of the sum."""
        return sum(received.counts for received in self._live.values())

    def receive(self, load: PublishedLoad, asked_at: float, now: float) -> bool:
        """Store a load; returns whether the sum may change. An old load is ignored.

        Args:
            load: an authenticated load.
            asked_at: time (s) at which the load was asked for; the age of the load counts from it.
            now: time (s) at which the load was received.
        """
        start = (load.agent, load.epoch)
        if load.number <= self._numbers.get(start, -1):
            return False
        self._remember(start, load.number)
        before = self._live.get(start)
        counted = before is not None and before.counts
        counts = counted or self._is_known(load.agent)
        queues = _queues(load, before.queues if before is not None else {}, now)
        self._live[start] = _Received(load, queues, asked_at, counts)
        if counts and load.idle_ms:
            self._idle_ms.append(load.idle_ms)
        if before is None or counts is not counted:
            return counts
        past = before.load
        if counts and (load.work or past.work):
            self._work += differences(past.work, load.work)
        return counts and (load.loads != past.loads or load.waiting != past.waiting)

    def counted(self) -> list[PublishedLoad]:
        """Return the newest load of each agent that is part of the sum."""
        return [received.load for received in self._live.values() if received.counts]

    def batch(self) -> dict[str, int]:
        """Return the running batch requests that may be preempted, by endpoint."""
        found: dict[str, int] = {}
        for load in self.counted():
            for name, requests in load.batch.items():
                found[name] = found.get(name, 0) + requests
        return found

    def asleep(self) -> dict[str, frozenset[str]]:
        """Return the models that other agents let sleep, by endpoint."""
        found: dict[str, frozenset[str]] = {}
        for load in self.counted():
            for name, models in load.asleep.items():
                found[name] = found.get(name, frozenset()).union(models)
        return found

    def take_work(self) -> list[Difference]:
        """Return the work that tenants received at the other agents since the last call."""
        work, self._work = self._work, []
        return work

    def take_idle(self) -> list[dict[str, dict[str, int]]]:
        """Return the times (ms) since the last uses of models that were received since the last call."""
        idle_ms, self._idle_ms = self._idle_ms, []
        return idle_ms

    def is_live(self, load: PublishedLoad) -> bool:
        """Whether the agent that published a load still publishes."""
        return (load.agent, load.epoch) in self._live

    def is_fading(self, now: float) -> bool:
        """Whether the weight of any load is below 1."""
        return any(weight_at_age(now - received.at) < 1.0 for received in self._live.values())

    def total(self, now: float) -> tuple[dict[str, Load], dict[str, list[RemoteQueue]]]:
        """Return the sum of the loads by endpoint, and the queues by model. Removes loads older than LEASE_S."""
        for start in [start for start, received in self._live.items() if now - received.at >= LEASE_S]:
            del self._live[start]
        loads: dict[str, Load] = {}
        queues: dict[str, list[RemoteQueue]] = {}
        for received in self._live.values():
            if not received.counts:
                continue
            weight = weight_at_age(now - received.at)
            for name, (requests, prefill_us, decode_us) in received.load.loads.items():
                if weight < 1.0:
                    requests = weighted_count(requests, weight)
                    prefill_us = weighted_count(prefill_us, weight)
                    decode_us = weighted_count(decode_us, weight)
                sum_ = loads.get(name, NO_LOAD)
                loads[name] = Load(sum_.requests + requests, sum_.prefill_us + prefill_us, sum_.decode_us + decode_us)
            for model, queue in received.queues.items():
                queues.setdefault(model, []).append(queue)
        return loads, queues

    def _remember(self, start: AgentStart, number: int) -> None:
        self._numbers.pop(start, None)
        self._numbers[start] = number
        if len(self._numbers) > MAX_NUMBERS:
            del self._numbers[next(iter(self._numbers))]


def _queues(load: PublishedLoad, before: dict[str, RemoteQueue], now: float) -> dict[str, RemoteQueue]:
    """Return the queues of a load that was received at `now` (s).

    The time between publication and receipt makes a head appear younger than it is. Of several reports about a head the
    one that was delayed least therefore counts.
    """
    queues = {}
    for model, queue in load.waiting.items():
        since, past = now - queue.waited_ms / 1000, before.get(model)
        if past is not None and past.which == queue.which:
            since = min(since, past.since)
        queues[model] = RemoteQueue(queue.requests, queue.behind, since, queue.which, queue.tenant)
    return queues
