"""The exchanges of data between the agents of a region through Redis: load, locations of objects, and prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from penstock.routing.affinity import AffinityIndex
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.objects.shared_objects import SharedObjects
from regional_agent.result_cache.result_cache_metrics import ResultCacheMetrics
from regional_agent.result_cache.shared_results import SharedResults
from regional_agent.shared_load.prefix_exchange import PrefixExchange
from regional_agent.shared_load.published_load import QueueSummary
from regional_agent.shared_load.redis_script import RegionRedis
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.shared_load.shared_load_exchange import SharedLoadExchange


class RegionExchanges:
    """The exchanges of one agent; none without a Redis."""

    def __init__(
        self, redis: RegionRedis | None, agent: AgentInstance, rng: Random, cache_metrics: ResultCacheMetrics
    ) -> None:
        """Create the exchanges of objects and of kept responses. `redis` is None for the only agent of a region."""
        self.objects = None if redis is None else SharedObjects(redis, rng)
        """Locations of objects; None without a Redis."""
        self.results = None if redis is None else SharedResults(redis, cache_metrics, rng)
        """The kept responses; None without a Redis."""
        self.every: list[SharedLoadExchange | SharedObjects | PrefixExchange | SharedResults] = []
        if self.objects is not None:
            self.every.append(self.objects)
        if self.results is not None:
            self.every.append(self.results)
        self._redis = redis
        self._agent = agent
        self._rng = rng

    def share_load(
        self,
        load: SharedLoad,
        queues: Callable[[], Mapping[str, QueueSummary]],
        on_received: Callable[[], None],
    ) -> None:
        """Add the exchange of load; see `SharedLoadExchange`."""
        if self._redis is not None:
            self.every.append(SharedLoadExchange(load, queues, on_received, self._redis, self._agent, self._rng))

    def share_prefixes(self, index: AffinityIndex, is_known: Callable[[str], bool]) -> None:
        """Add the exchange of prefixes; see `PrefixExchange`."""
        if self._redis is not None:
            self.every.append(PrefixExchange(index, is_known, self._redis, self._agent, self._rng))

    def start(self) -> None:
        """Start all exchanges."""
        for exchange in self.every:
            exchange.start()

    async def stop(self) -> None:
        """Stop all exchanges."""
        for exchange in self.every:
            await exchange.stop()

    def status(self) -> dict[str, object]:
        """The state of the exchange of kept responses for the status page."""
        return {"result_cache": None if self.results is None else self.results.status()}
