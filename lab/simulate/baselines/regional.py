"""Global balancers that choose a region by what regions report, as their authors describe them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OVERPROVISIONING = 1.4
"""Envoy's default (`overprovisioning_factor` 140 %)."""


class RegionReport(NamedTuple):
    """What a region last reported."""

    slots: int
    in_flight: int
    """Requests that run or wait there."""
    healthy: float = 1.0
    """Share (0-1) of its endpoints that are healthy."""

    @property
    def use(self) -> float:
        """Requests over slots."""
        return self.in_flight / self.slots


class RegionalBalancer(ABC):
    """Shares of the regions in the requests of one origin."""

    @abstractmethod
    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """The share (0-1) of each region.

        Args:
            nearest_first: the permitted regions; the first is home.
            reports: of all of these regions.
        """


class LatencyOnly(RegionalBalancer):
    """The nearest region: latency-based DNS records, such as Amazon Route 53's latency routing."""

    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """As `RegionalBalancer.shares`."""
        return {nearest_first[0]: 1.0}


class EnvoyPriorities(RegionalBalancer):
    """Envoy's priority levels: a level receives its health times the overprovisioning factor, and the next one the rest
    (Envoy's documentation, "Priority levels"). Load plays no part.
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
    """All requests go to the nearest region whose reported use is below 1, as with failover by a health check that a
    full region fails; home if there is none.
    """

    def shares(self, nearest_first: Sequence[str], reports: Mapping[str, RegionReport]) -> dict[str, float]:
        """As `RegionalBalancer.shares`."""
        return {next((name for name in nearest_first if reports[name].use < 1.0), nearest_first[0]): 1.0}
