"""Builds the sketches of hot prompt beginnings that this agent sends to other regions with its probe answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.routing.affinity import AffinityIndex
from penstock.routing.prefixes.hot_prefixes import HotPrefixes
from penstock.routing.prefixes.prefix_sketch import MAX_ENTRIES, encode_sketch, holder_wait_s
from regional_agent.endpoints.endpoint_set import EndpointSet

INTERVAL_S: Final = 2.0
"""Minimum interval (s) between two sketches for a region: with MAX_ENTRIES at most 3.5 kB/s for each of its agents."""


class PrefixPublisher:
    """The sketches of one agent, by the region that receives them."""

    def __init__(
        self, hot: HotPrefixes, affinity: AffinityIndex, endpoints: EndpointSet, clock: Callable[[], float]
    ) -> None:
        """Create a publisher.

        Args:
            hot: the beginnings that requests of this agent share.
            affinity: the endpoints that hold them.
            clock: monotonic, in seconds.
        """
        self._hot, self._affinity, self._endpoints, self._clock = hot, affinity, endpoints, clock
        self._sketches: dict[str, tuple[float, bytes]] = {}

    def sketch_for(self, region: str) -> bytes:
        """Return the sketch for the agents of a region of the policy: beginnings that the region may know."""
        if not len(self._hot):
            return b""
        now = self._clock()
        at, sketch = self._sketches.get(region, (-INTERVAL_S, b""))
        if now - at < INTERVAL_S:
            return sketch
        own = [endpoint for endpoint in self._endpoints.every() if not endpoint.spec.burst]
        views = {endpoint.name: endpoint.view for endpoint in own}
        waits_s = {}
        for key in self._hot.hottest(region, MAX_ENTRIES, now):
            holders = [views[name] for name in self._affinity.holders(key, now) if name in views]
            wait_s = holder_wait_s(holders)
            if wait_s is not None:
                waits_s[key] = wait_s
        sketch = encode_sketch(waits_s)
        self._sketches[region] = now, sketch
        return sketch
