"""Where clients are: cities of many countries, what part of the demand each asks for, and how far each region is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lab.wan.matrix import SHIPPED_SITES
from penstock.geography import estimated_rtt_ms, great_circle_km


class Site(msgspec.Struct, frozen=True):
    """A city whose clients share one way into the network."""

    name: str
    country: str
    """ISO 3166-1 alpha-2."""
    latitude_deg: float
    longitude_deg: float
    weight: float
    """Its part of the planet's demand, relative to the other sites."""

    def rtt_ms(self, region: str) -> float:
        """Round trip (ms) to a region's entry, estimated from geography: nobody publishes measured ones for cities."""
        return estimated_rtt_ms(great_circle_km(self.latitude_deg, self.longitude_deg, *SHIPPED_SITES[region]))

    def nearest_first(self, regions: Iterable[str]) -> tuple[str, ...]:
        """`regions` by round trip from here."""
        return tuple(sorted(regions, key=lambda region: (self.rtt_ms(region), region)))


SITES = (
    Site("Hamburg", "DE", 53.55, 9.99, 1.3),
    Site("Stockholm", "SE", 59.33, 18.07, 1.2),
    Site("Warsaw", "PL", 52.23, 21.01, 0.9),
    Site("Milan", "IT", 45.46, 9.19, 0.9),
    Site("Barcelona", "ES", 41.39, 2.17, 1.0),
    Site("Lisbon", "PT", 38.72, -9.14, 0.6),
    Site("Lagos", "NG", 6.52, 3.38, 0.4),
    Site("Manchester", "GB", 53.48, -2.24, 1.3),
    Site("Dublin", "IE", 53.35, -6.26, 0.5),
    Site("Paris", "FR", 48.86, 2.35, 0.9),
    Site("New York", "US", 40.71, -74.01, 1.4),
    Site("Los Angeles", "US", 34.05, -118.24, 0.8),
    Site("Toronto", "CA", 43.65, -79.38, 0.4),
    Site("Sao Paulo", "BR", -23.55, -46.63, 0.6),
    Site("Osaka", "JP", 34.69, 135.50, 1.3),
    Site("Seoul", "KR", 37.57, 126.98, 0.6),
    Site("Singapore", "SG", 1.35, 103.82, 0.6),
    Site("Sydney", "AU", -33.87, 151.21, 0.5),
)
"""Cities and their weights are the demo's own; no public trace says where its clients were."""
