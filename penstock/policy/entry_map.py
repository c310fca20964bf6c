"""Entry regions that entry maps prescribe for a client's location, before the nearest ones."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.policy.geography import Location
from penstock.policy.policy import Policy

NOT_MAPPED: tuple[str, ...] = ()


def mapped(policy: Policy, location: Location) -> tuple[str, ...]:
    """Regions of the entry map that matches a location, best first; empty if none matches.

    A map of the client's subdivision precedes a map of its country; of several maps, the first by name applies. A map
    is a preference: a client at an unknown location matches no map and is not refused.
    """
    country, subdivision = location.country, location.subdivision
    if country is None:
        return NOT_MAPPED
    if subdivision is not None:
        code = f"{country}-{subdivision}"
        for entry_map in policy.entry_maps:
            if code in entry_map.client_subdivisions:
                return entry_map.regions
    return next(
        (entry_map.regions for entry_map in policy.entry_maps if country in entry_map.client_countries), NOT_MAPPED
    )


def order_by_entry_map(policy: Policy, location: Location, nearest: Iterable[str]) -> tuple[str, ...]:
    """Orders entry regions for a location: those of its entry map first, then the others in the given order."""
    regions = tuple(nearest)
    first = tuple(name for name in mapped(policy, location) if name in regions)
    return (*first, *(name for name in regions if name not in first))
