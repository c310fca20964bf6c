"""The totals of a pool that its endpoints keep up to date: a base class, so that endpoints need not import pools."""

from __future__ import annotations

from penstock.health.outlier_ejection import EjectionRules, room_to_eject


class PoolTotals:
    """What an endpoint reads and updates of each pool that it belongs to. `EndpointPool` computes it."""

    __slots__ = ("ejected", "in_flight", "panics", "rules", "service_s", "size")

    def __init__(self, service_s: float, rules: EjectionRules) -> None:
        """Create the totals of an empty pool.

        Args:
            service_s: mean service time (s) before any completion.
            rules: outlier detection, which bounds how many endpoints of the pool may be ejected.
        """
        self.rules = rules
        self.size = 0
        """Endpoints of the pool."""
        self.ejected = 0
        """Endpoints that outlier detection has ejected, those on probation included."""
        self.panics = False
        """So few endpoints remain that the pool ignores ejections (Envoy's panic mode)."""
        self.in_flight = 0
        """Requests on the endpoints that may take requests, from all agents of the region."""
        self.service_s = service_s
        """Mean time (s) a request holds its slot."""

    def has_room_to_eject(self) -> bool:
        """Whether outlier detection may eject one more endpoint of this pool."""
        return room_to_eject(self.ejected, self.size, self.rules)

    def update_readiness(self) -> None:
        """Decide again which endpoints may take requests. Called after the health of an endpoint has changed."""
        raise NotImplementedError

    def recount(self) -> None:
        """Sum the numbers of the endpoints again."""
        raise NotImplementedError
