"""Which entry regions people have decided on for clients of some place, before whatever is nearest."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.policy.geography import Location
from penstock.policy.policy import Policy

NOT_MAPPED: tuple[str, ...] = ()


def mapped(policy: Policy, location: Location) -> tuple[str, ...]:
    """The regions that a map names for clients there, best first; none where no map is about them.

    A map of the client's subdivision goes before one of its country; of several, the first by name counts. A map is a
    preference: a client whose place is unknown is in none, and refused nothing for it.
    """
    country, subdivision = location.country, location.subdivision
    if country is None:
        return NOT_MAPPED
    if subdivision is not None:
        code = f"{country}-{subdivision}"
        for one in policy.entry_maps:
            if code in one.client_subdivisions:
                return one.regions
    return next((one.regions for one in policy.entry_maps if country in one.client_countries), NOT_MAPPED)


def order_by_entry_map(policy: Policy, location: Location, nearest: Iterable[str]) -> tuple[str, ...]:
    """Regions in the order in which a client there should come in: those of its map, then the others as they were."""
    regions = tuple(nearest)
    first = tuple(name for name in mapped(policy, location) if name in regions)
    return (*first, *(name for name in regions if name not in first))
