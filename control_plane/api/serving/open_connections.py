"""The open connections of the HTTP API, and the closing of a connection when another one is over the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

from penstock.admission.client_network import client_network
from penstock.admission.connection_limits import CountedConnection, LimitedConnections, Standing, StandingLimits

STATE_KEY = "connection"
"""Key of the connection in the state of an ASGI request."""

LIMITS: Mapping[Standing, StandingLimits] = MappingProxyType(
    {
        Standing.STRANGER: StandingLimits(total=1_000, per_holder=250),
        Standing.CALLER: StandingLimits(total=500, per_holder=100),
        Standing.PROCESS: StandingLimits(total=4_096, per_holder=128),
    }
)
"""Limits where the process may open enough files. A control plane has up to 64 connections to the leader, or 128
while its certificate is renewed, and an agent a few."""

RESERVED_FILES = 256
"""File descriptors that connections of clients do not use: of etcd, the policy repository, secrets and logs."""


def limits_within(descriptors: int) -> Mapping[Standing, StandingLimits]:
    """Return LIMITS, or lower limits in proportion where the process may open fewer files.

    Args:
        descriptors: maximum number of open files of the process.
    """
    available = max(len(LIMITS), descriptors - min(RESERVED_FILES, descriptors // 2))
    wanted = sum(limits.total for limits in LIMITS.values())
    if available >= wanted:
        return LIMITS
    return {
        standing: StandingLimits(
            total=max(1, limits.total * available // wanted), per_holder=max(1, limits.per_holder * available // wanted)
        )
        for standing, limits in LIMITS.items()
    }


class OpenConnections:
    """The connections of one listener."""

    def __init__(
        self,
        limits: Mapping[Standing, StandingLimits],
        clock: Callable[[], float],
        *,
        trusts: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Start without connections.

        Args:
            clock: monotonic time (s).
            trusts: whether an address is a trusted proxy, which has no limit of its own.
        """
        self.limited = LimitedConnections(limits)
        self.clock = clock
        self._trusts = trusts
        self._connections: dict[CountedConnection, OpenConnection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def open(self, address: str, abort: Callable[[], object]) -> OpenConnection:
        """Add a connection from an address, and close another one if that is over the limit; `abort` closes it."""
        holder = None if self._trusts(address) else client_network(address)
        counted, evicted = self.limited.open(holder, self.clock())
        connection = self._connections[counted] = OpenConnection(self, counted, abort)
        self.evict(evicted)
        return connection

    def evict(self, counted: CountedConnection | None) -> None:
        """Close a connection that has left for another one."""
        if counted is not None:
            self._connections[counted].abort()

    def close(self, counted: CountedConnection) -> None:
        """Remove a connection that has ended."""
        self.limited.close(counted)
        self._connections.pop(counted, None)


class OpenConnection:
    """One open connection."""

    def __init__(self, connections: OpenConnections, counted: CountedConnection, abort: Callable[[], object]) -> None:
        self.is_closed = False
        self.abort = abort
        """Closes the connection at once."""
        self._connections = connections
        self._counted = counted

    def authenticate(self, standing: Standing, holder: str) -> bool:
        """Record who sent a request on the connection; returns False if the sender has too many connections."""
        evicted = self._connections.limited.authenticate(self._counted, standing, holder)
        if evicted is self._counted:
            return False
        self._connections.evict(evicted)
        return True

    def begin(self) -> None:
        """Record that a response, or the head of a request on an idle connection, is complete."""
        self._connections.limited.begin(self._counted, self._connections.clock())

    def wait(self, *, for_client: bool) -> None:
        """Record whether the server waits for the client, to send or to read, or the client for the server."""
        self._counted.is_waiting = for_client

    def receive(self, count: int) -> None:
        """Record the arrival of `count` bytes of a body."""
        self._connections.limited.receive(self._counted, count, self._connections.clock())

    def close(self) -> None:
        """Record the end of the connection."""
        self.is_closed = True
        self._connections.close(self._counted)


def connection_of(scope: MutableMapping[str, Any]) -> OpenConnection | None:
    """Return the connection of an ASGI request; None outside the API's server, as in tests."""
    connection = scope.get("state", {}).get(STATE_KEY)
    return connection if isinstance(connection, OpenConnection) else None
