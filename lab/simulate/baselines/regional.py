"""Global balancers that choose a region from the regions' reports, implemented as their authors describe them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OVERPROVISIONING = 1.4
"""Envoy's default (`overprovisioning_factor` 140 %)."""


class RegionReport(NamedTuple):
    """The last report of a region."""

    slots: int
    in_flight: int
    """Requests that run or wait in the region."""
    healthy: float = 1.0
    """Share (0-1) of the region's endpoints that are healthy."""

    @property
    def use(self) -> float:
        """Requests in flight divided by slots."""
        return self.in_flight / self.slots


class RegionalBalancer(ABC):
    """Distributes the requests of an origin over regions."""

    @abstractmethod
    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """Return the share (0-1) of each region.

        Args:
            nearest_first: the permitted regions; the first is the home region.
            reports: reports of the permitted regions.
        """


class LatencyOnly(RegionalBalancer):
    """The nearest region: latency-based DNS records, such as Amazon Route 53's latency routing."""

    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """As `RegionalBalancer.shares`."""
        return {nearest_first[0]: 1.0}


class EnvoyPriorities(RegionalBalancer):
    """Envoy's priority levels: a level receives its health times the overprovisioning factor, and the next level the
    rest (Envoy's documentation, "Priority levels"). Load is not considered.
    """

    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """As `RegionalBalancer.shares`."""
        found: dict[str, float] = {}
        left = 1.0
        for name in nearest_first:
            share = min(left, OVERPROVISIONING * reports[name].healthy)
            if share > 0.0:
                found[name] = share
                left -= share
        total = sum(found.values())
        return {name: share / total for name, share in found.items()} if total else {nearest_first[0]: 1.0}


class AllOrNothing(RegionalBalancer):
    """All requests go to the nearest region whose reported use is below 1, else to the home region. This corresponds to
    failover by a health check that a full region fails.
    """

    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """As `RegionalBalancer.shares`."""
        return {next((name for name in nearest_first if reports[name].use < 1.0), nearest_first[0]): 1.0}
