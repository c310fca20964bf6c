"""Round trips from client sites to regions, and the nearest region of each site."""

from __future__ import annotations

from collections.abc import Iterable

from lab.geoip import ClientSite
from lab.wan.matrix import SHIPPED_SITES
from penstock.policy.geography import estimated_rtt_ms, great_circle_km


def entry_rtt_ms(site: ClientSite, region: str) -> float:
    """Return the round trip (ms) from a site to a region's entry, estimated from the great-circle distance."""
    return estimated_rtt_ms(great_circle_km(site.latitude_deg, site.longitude_deg, *SHIPPED_SITES[region]))


def nearest_first(site: ClientSite, regions: Iterable[str]) -> tuple[str, ...]:
    """Return `regions` in order of their round trips from the site."""
    return tuple(sorted(regions, key=lambda region: (entry_rtt_ms(site, region), region)))
