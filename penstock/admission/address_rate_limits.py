"""Rates at which connections or requests may arrive from one client address, and from the network around it."""

from __future__ import annotations

from penstock.admission.client_network import client_network, client_prefix
from penstock.admission.leaky_buckets import LeakyBuckets

BURST_S = 10.0
"""What may arrive at once, in seconds of the permitted rate."""

PER_PREFIX_FACTOR = 4
"""A prefix may send this number of times what one address may: botnets and clients with many addresses share prefixes,
and so do the clients of a mobile network."""

MAX_EXCESS_S = 10.0
"""Time (s) for which a client waits at most beyond its burst. Requests are counted after they have been served, and so
may exceed the rate by far."""

MAX_NETWORKS = 16_384
"""Number of addresses, and of prefixes, whose rates are kept: about 7 MB in all. An attacker with more addresses is
limited by prefix, and by the total number of connections."""


class ArrivalRates:
    """Arrivals of one kind, from all addresses."""

    __slots__ = ("_networks", "_prefixes")

    def __init__(self, per_s: float) -> None:
        """Start empty; `per_s` is the rate (1/s) for one address: an IPv4 address, or a /64 of IPv6."""
        self._networks = LeakyBuckets(max(1.0, per_s * BURST_S), 1 / per_s, MAX_NETWORKS, MAX_EXCESS_S)
        per_prefix_s = per_s * PER_PREFIX_FACTOR
        self._prefixes = LeakyBuckets(max(1.0, per_prefix_s * BURST_S), 1 / per_prefix_s, MAX_NETWORKS, MAX_EXCESS_S)

    def admits(self, address: str, now: float) -> bool:
        """Whether another arrival is within the rates of its address and of its prefix (/24, /48). `now` in s."""
        if self._networks.wait_s(client_network(address), now) > 0:
            return False
        return self._prefixes.wait_s(client_prefix(address), now) <= 0

    def add(self, address: str, now: float, count: int = 1) -> None:
        """Count arrivals. `now` in s."""
        self._networks.add(client_network(address), now, count)
        self._prefixes.add(client_prefix(address), now, count)
