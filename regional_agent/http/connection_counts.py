"""Counts a listener's connections and TLS handshakes, in total and by client network, against their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.admission.client_network import client_network
from regional_agent.http.limits import Limits

PER_NETWORK_DIVISOR = 4
"""Without `Limits.max_connections_per_address`, one network may open this fraction (1/4) of all connections."""


class ConnectionCounts:
    """The connections of one listener."""

    def __init__(self, limits: Limits, trusts: Callable[[str], bool]) -> None:
        """Start at zero; `trusts` returns whether an address is a trusted proxy, which has no network limit."""
        self.connections = 0
        self.handshakes = 0
        self.accepted = 0
        """Connections since the start, without those of `refused`."""
        self.refused = 0
        """Connections since the start that were above the limits."""
        self._limits = limits
        self.trusts = trusts
        self._max_per_network = limits.max_connections_per_address or max(
            1, limits.max_connections // PER_NETWORK_DIVISOR
        )
        self._connections_from: Counter[str] = Counter()
        self._handshakes_from: Counter[str] = Counter()

    def add_connection(self, address: str) -> bool:
        """Count a connection; returns whether it is within the limits."""
        network = client_network(address)
        self.connections += 1
        self._connections_from[network] += 1
        fits = self._fits(address, self.connections, self._connections_from[network])
        self.accepted += fits
        self.refused += not fits
        return fits

    def remove_connection(self, address: str) -> None:
        """Count a closed connection."""
        self.connections -= 1
        _decrement(self._connections_from, client_network(address))

    def admits_handshake(self, address: str) -> bool:
        """Whether a TLS handshake may begin. Handshakes in progress count as connections."""
        network = client_network(address)
        from_network = self._connections_from[network] + self._handshakes_from[network]
        return self._fits(address, self.connections + self.handshakes + 1, from_network + 1)

    def add_handshake(self, address: str) -> None:
        """Count a handshake that begins."""
        self.handshakes += 1
        self._handshakes_from[client_network(address)] += 1

    def remove_handshake(self, address: str) -> None:
        """Count a handshake that has ended."""
        self.handshakes -= 1
        _decrement(self._handshakes_from, client_network(address))

    @property
    def crowded(self) -> bool:
        """Whether connections over the limit are closed without a response, to free their descriptors at once."""
        limit = self._limits.max_connections
        return self.connections > limit + limit // 8 + 1

    @property
    def none_left(self) -> bool:
        """Whether there is neither a connection nor a handshake."""
        return self.connections == 0 and self.handshakes == 0

    def _fits(self, address: str, total: int, from_network: int) -> bool:
        if total > self._limits.max_connections:
            return False
        return from_network <= self._max_per_network or self.trusts(address)


def _decrement(counts: Counter[str], network: str) -> None:
    counts[network] -= 1
    if counts[network] <= 0:
        del counts[network]
