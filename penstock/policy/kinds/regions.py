"""Kinds of policy documents: regions, and where clients enter."""

from __future__ import annotations

from penstock.policy.fields import PolicyStruct


class Region(PolicyStruct, frozen=True):
    """One site that serves requests."""

    name: str
    country: str
    """ISO 3166-1 alpha-2 code of the country of the hardware."""
    latitude_deg: float
    longitude_deg: float
    jurisdictions: frozenset[str] = frozenset()
    """Jurisdictions of the site: its country and the blocs of the country, such as {"DE", "EU", "EEA"}."""
    cost_per_gpu_hour: float = 1.0
    """Relative price of a GPU hour in this region, in the currency of the bundle."""
    city: str = ""
    egress_cost_per_gb: float = 0.0
    """Price of 10^9 bytes that leave this region for another one, in the currency of the bundle."""
    bias_ms: float = 0.0
    """Distance (ms) that is added to the real distance of this region for every origin and client, including the region
    itself."""
    spillover_order: tuple[str, ...] = ()
    """Regions that receive this region's overflow first, in order and regardless of distance; the others follow."""


class EntryMap(PolicyStruct, frozen=True):
    """Preferred entry regions for clients in some locations, before the nearest ones."""

    name: str
    client_countries: frozenset[str]
    """ISO 3166-1 alpha-2."""
    client_subdivisions: frozenset[str]
    """ISO 3166-2, first level, such as "US-CA"; a map of a client's subdivision precedes one of its country."""
    regions: tuple[str, ...]
    """Entry regions, best first. Regions that residency forbids are skipped; the other permitted regions follow."""
