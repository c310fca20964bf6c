"""The newest load of each other agent of the region, and their sum, weighted by age.

Liveness is what an agent publishes, not what Redis stores: an agent whose number no longer grows loses weight and is
gone after LEASE_S. So keys that are evicted, flushed or lost in a failover take no requests out of the sum at once, and
an old entry that is written again counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.fleet.shared_counts import LEASE_S, weight_at_age, weighted_count
from penstock.routing.pool_accounting import NO_LOAD, Load
from regional_agent.shared_load.published_load import PublishedLoad, QueueSummary

MAX_NUMBERS = 4096
"""Starts of agents whose last number is remembered, so that a replay is recognised."""

AgentStart = tuple[str, int]
"""Name and epoch of an agent. A start that finishes its requests while its successor runs counts beside it."""


class _Received(NamedTuple):
    load: PublishedLoad
    at: float
    """When (s) it was read."""
    counts: bool
    """Whether the directory has known the agent while it published."""


class OtherAgents:
    """What the other agents of the region have published."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        """Create an empty collection.

        Args:
            is_known: whether the directory of agents knows an agent of this region. An agent that it knows counts as
                long as it publishes without interruption, even if its registration has expired since.
        """
        self._is_known = is_known
        self._live: dict[AgentStart, _Received] = {}
        self._numbers: dict[AgentStart, int] = {}
        """Last number of each start, least recently received first."""

    def __len__(self) -> int:
        """The agents that count."""
        return sum(received.counts for received in self._live.values())

    def receive(self, load: PublishedLoad, now: float) -> bool:
        """Take in a load that was read at `now` (s); whether it may change the sum. An old one does nothing."""
        start = (load.agent, load.epoch)
        if load.number <= self._numbers.get(start, -1):
            return False
        self._remember(start, load.number)
        before = self._live.get(start)
        counted = before is not None and before.counts
        counts = counted or self._is_known(load.agent)
        self._live[start] = _Received(load, now, counts)
        if before is None or counts is not counted:
            return counts
        past = before.load
        return counts and (load.loads != past.loads or load.waiting != past.waiting or load.limits != past.limits)

    def is_live(self, load: PublishedLoad) -> bool:
        """Whether the agent that published a load still publishes."""
        return (load.agent, load.epoch) in self._live

    def is_fading(self, now: float) -> bool:
        """Whether some load counts only in part."""
        return any(weight_at_age(now - received.at) < 1.0 for received in self._live.values())

    def total(self, now: float) -> tuple[dict[str, Load], dict[str, list[QueueSummary]]]:
        """The sum of the loads by endpoint, and the queues by model. Forgets agents that have fallen silent."""
        for start in [start for start, received in self._live.items() if now - received.at >= LEASE_S]:
            del self._live[start]
        loads: dict[str, Load] = {}
        queues: dict[str, list[QueueSummary]] = {}
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
            for model, queue in received.load.waiting.items():
                queues.setdefault(model, []).append(queue)
        return loads, queues

    def limits(self, agent: str) -> dict[str, int]:
        """The learned slots that `agent` follows, by endpoint: those of the first agent by name before it.

        The region's agents share the endpoints' slots, so one limit has to be in force in all of them at a time. Called
        after `total`.
        """
        limits: dict[str, int] = {}
        for start in sorted(self._live):
            received = self._live[start]
            if received.counts and start[0] < agent:
                for name, limit in received.load.limits.items():
                    limits.setdefault(name, limit)
        return limits

    def _remember(self, start: AgentStart, number: int) -> None:
        self._numbers.pop(start, None)
        self._numbers[start] = number
        if len(self._numbers) > MAX_NUMBERS:
            del self._numbers[next(iter(self._numbers))]
