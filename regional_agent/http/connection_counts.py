"""Counts a listener's connections and TLS handshakes, in total, by client address and by prefix, against the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.admission.address_rate_limits import ArrivalRates
from penstock.admission.client_network import client_network, client_prefix
from regional_agent.http.limits import Limits

PER_NETWORK_DIVISOR = 4
"""Without `Limits.max_connections_per_address`, one address may open this fraction (1/4) of all connections."""

PER_PREFIX_DIVISOR = 2
"""Without `Limits.max_connections_per_prefix`, one prefix may open this fraction (1/2) of all connections."""

INCOMPLETE_HANDSHAKE = 100
"""Number of arrivals as which a handshake that the client did not complete counts, beside its own: it has cost about as
much as that many connections which are closed before their handshake."""

TOTAL = "total"
ADDRESS = "address"
PREFIX = "prefix"
CONNECTION_RATE = "connection_rate"
REQUEST_RATE = "request_rate"
"""The limits, as the metric of refused connections names them."""

LIMITS = (TOTAL, ADDRESS, PREFIX, CONNECTION_RATE, REQUEST_RATE)


class ConnectionCounts:
    """The connections of one listener."""

    def __init__(self, limits: Limits, trusts: Callable[[str], bool], *, for_processes: bool = False) -> None:
        """Start at zero.

        Args:
            trusts: whether an address is a trusted proxy, which only the total limits.
            for_processes: whether processes of the fleet connect, and no clients: a network that has completed a TLS
                handshake has no limit of its rate then, since it may forward the whole overflow of a region at once.
        """
        self.for_processes = for_processes
        self.connections = 0
        self.handshakes = 0
        self.accepted = 0
        """Connections since the start, without those of `refused`."""
        self.refused = dict.fromkeys(LIMITS, 0)
        """Connections since the start that were above a limit, by limit."""
        self._limits = limits
        self.trusts = trusts
        total = limits.max_connections
        self._max_per_network = limits.max_connections_per_address or max(1, total // PER_NETWORK_DIVISOR)
        self._max_per_prefix = limits.max_connections_per_prefix or max(
            self._max_per_network, total // PER_PREFIX_DIVISOR
        )
        self._connections = _ByNetwork()
        self._handshakes = _ByNetwork()
        self._arrivals = _rates(limits.max_connection_rate_per_address)
        self._requests = None if for_processes else _rates(limits.max_request_rate_per_address)

    @property
    def limits_requests(self) -> bool:
        """Whether the rate of requests is limited."""
        return self._requests is not None

    def add_connection(self, address: str, arrived_at: float | None) -> str:
        """Count a connection; returns the limit that it exceeds, empty for none.

        Args:
            arrived_at: time (s) at which a connection without TLS was accepted; None after a handshake, with which its
                arrival was counted.
        """
        self.connections += 1
        self._connections.add(address)
        # The connection of a handshake that has just succeeded is in both counts.
        exceeded = self._exceeded(
            address, self.connections, self._connections.of(address), self._connections.around(address), arrived_at
        )
        if exceeded:
            self.refused[exceeded] += 1
        else:
            self.accepted += 1
        return exceeded

    def remove_connection(self, address: str) -> None:
        """Count a closed connection."""
        self.connections -= 1
        self._connections.remove(address)

    def permits_handshake(self, address: str, now: float | None) -> bool:
        """Whether a TLS handshake may begin. Handshakes in progress count as connections.

        Args:
            now: time (s); None without a limit of the rate.
        """
        exceeded = self._exceeded(
            address,
            self.connections + self.handshakes + 1,
            self._connections.of(address) + self._handshakes.of(address) + 1,
            self._connections.around(address) + self._handshakes.around(address) + 1,
            now,
        )
        if exceeded:
            self.refused[exceeded] += 1
        return not exceeded

    def add_handshake(self, address: str) -> None:
        """Count a handshake that begins."""
        self.handshakes += 1
        self._handshakes.add(address)

    def remove_handshake(self, address: str, now: float, *, completed: bool) -> None:
        """Count a handshake that has ended. `now` in s."""
        self.handshakes -= 1
        self._handshakes.remove(address)
        if not completed and self._arrivals is not None and not self.trusts(address):
            self._arrivals.add(address, now, INCOMPLETE_HANDSHAKE)

    def add_requests(self, address: str, count: int, now: float) -> None:
        """Count requests of a client. `now` in s."""
        if self._requests is not None and not self.trusts(address):
            self._requests.add(address, now, count)

    def admits_requests(self, address: str, now: float) -> bool:
        """Whether a client is within the rate of requests. `now` in s."""
        return self._requests is None or self._requests.admits(address, now) or self.trusts(address)

    @property
    def crowded(self) -> bool:
        """Whether connections over the limit are closed without a response, to free their descriptors at once."""
        limit = self._limits.max_connections
        return self.connections > limit + limit // 8 + 1

    @property
    def none_left(self) -> bool:
        """Whether there is neither a connection nor a handshake."""
        return self.connections == 0 and self.handshakes == 0

    def _exceeded(self, address: str, total: int, from_network: int, from_prefix: int, arrived_at: float | None) -> str:
        """Return the limit that a connection exceeds, which the numbers contain; empty for none."""
        if total > self._limits.max_connections:
            return TOTAL
        if from_network > self._max_per_network and not self.trusts(address):
            return ADDRESS
        if from_prefix > self._max_per_prefix and not self.trusts(address):
            return PREFIX
        if arrived_at is None or self.trusts(address):
            return ""
        if self._requests is not None and not self._requests.admits(address, arrived_at):
            return REQUEST_RATE
        if self._arrivals is not None:
            if not self._arrivals.admits(address, arrived_at):
                return CONNECTION_RATE
            self._arrivals.add(address, arrived_at)
        return ""


class _ByNetwork:
    """Numbers by address and by prefix; what is open bounds their number."""

    def __init__(self) -> None:
        self._networks: Counter[str] = Counter()
        self._prefixes: Counter[str] = Counter()

    def of(self, address: str) -> int:
        return self._networks[client_network(address)]

    def around(self, address: str) -> int:
        return self._prefixes[client_prefix(address)]

    def add(self, address: str) -> None:
        self._networks[client_network(address)] += 1
        self._prefixes[client_prefix(address)] += 1

    def remove(self, address: str) -> None:
        _decrement(self._networks, client_network(address))
        _decrement(self._prefixes, client_prefix(address))


def _rates(per_s: float | None) -> ArrivalRates | None:
    return None if per_s is None else ArrivalRates(per_s)


def _decrement(counts: Counter[str], network: str) -> None:
    counts[network] -= 1
    if counts[network] <= 0:
        del counts[network]
