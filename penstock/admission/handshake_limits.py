"""How many TLS handshakes a server has in progress, and which one it ends when another one is over the limit.

Networks that have completed a handshake have a limit of their own, so that networks that only begin handshakes cannot
displace those of agents and clients that connect again, however many such networks there are.
"""

from __future__ import annotations

from penstock.admission.connection_limits import CountedConnection, LimitedConnections, Standing, StandingLimits

PER_NETWORK_DIVISOR = 4
"""One network may have this fraction (1/4) of the handshakes of its kind."""

MAX_KNOWN_NETWORKS = 4096
"""Number of networks that are remembered; the network whose last handshake is the oldest is forgotten first."""


class LimitedHandshakes:
    """The handshakes in progress at one listener."""

    def __init__(self, total: int) -> None:
        """Start without handshakes.

        Args:
            total: maximum number of handshakes; networks that have completed a handshake have half of them.
        """
        half = max(1, total // 2)
        limits = StandingLimits(half, max(1, half // PER_NETWORK_DIVISOR))
        self._limited = LimitedConnections({Standing.STRANGER: limits, Standing.CALLER: limits})
        self._known: dict[str | None, None] = {}

    def is_known(self, network: str | None) -> bool:
        """Whether a network has completed a handshake."""
        return network in self._known

    def open(self, network: str | None, now: float) -> tuple[CountedConnection, CountedConnection | None]:
        """Add a handshake; returns it, and the handshake to end.

        Args:
            network: network of the client; None without a limit for each network, as for a trusted proxy.
            now: time in seconds.
        """
        return self._limited.open(network, now, Standing.CALLER if network in self._known else Standing.STRANGER)

    def close(self, counted: CountedConnection, *, completed: bool) -> None:
        """Remove a handshake that has ended, or that was returned for closing; `completed`: it succeeded."""
        self._limited.close(counted)
        if completed:
            self._known.pop(counted.holder, None)
            self._known[counted.holder] = None
            if len(self._known) > MAX_KNOWN_NETWORKS:
                del self._known[next(iter(self._known))]
