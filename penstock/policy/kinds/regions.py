"""Kinds of policy documents: regions, blocs of countries, distances, and where clients enter."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.policy.fields import (
    DERIVED,
    BlocName,
    Conflict,
    CountryRef,
    Label,
    ModelRef,
    NonEmpty,
    PlaceRef,
    PolicyStruct,
    RegionRef,
    SubdivisionRef,
    bounds,
    length,
)
from penstock.policy.kinds.region_entry import RegionEntry

RttMs = Annotated[float, bounds(ge=0, le=10_000)]


class RegionRole(StrEnum):
    """What a region is for while no other region is lost."""

    ACTIVE = "active"
    """Serves, together with all other active regions (active-active)."""
    PASSIVE = "passive"
    """Active-passive: receives traffic only when the active regions have no room, and holds the endpoints for the loss
    of any one of them (`survive_one_loss`)."""
    PILOT_LIGHT = "pilot_light"
    """Receives traffic only when the active regions have no room, and keeps `min_endpoints` of each model. When an
    active region is lost, the demand of the lost region is ordered here first."""


STANDBY_MS: Final = 10_000.0
"""Distance (ms) that is added to a standby region, for every origin and client: more than any real distance."""


class Weekday(StrEnum):
    """A day of the week."""

    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"


class PriceHours(PolicyStruct, frozen=True):
    """The price of a GPU hour at some hours."""

    cost_per_gpu_hour: Annotated[float, bounds(ge=0, le=1e6)]
    """Price of a GPU hour at these hours."""
    from_hour: Annotated[int, bounds(ge=0, le=23)] = 0
    """First hour of the day (0-23)."""
    to_hour: Annotated[int, bounds(ge=1, le=24)] = 24
    """Hour (1-24) before which the price ends; if it is not after `from_hour`, the price covers the end and the
    beginning of each day."""
    days: Annotated[tuple[Weekday, ...], Meta(extra_json_schema={"maxItems": 7})] = ()
    """Days of the week. Default: all."""


Hours = Annotated[tuple[PriceHours, ...], Meta(extra_json_schema={"maxItems": 32})]


class SpotPool(PolicyStruct, frozen=True):
    """The endpoints of some models in a region are spot capacity, which the provider may reclaim."""

    models: NonEmpty[tuple[ModelRef, ...]]
    """Names of the models."""
    cost_per_gpu_hour: Annotated[float, bounds(ge=0, le=1e6)]
    """Price of a GPU hour of these endpoints."""
    price_hours: Hours | UnsetType = UNSET
    """Prices of their GPU hours by time of day and day of the week, as those of the region and in its time zone."""


class BurstPool(PolicyStruct, frozen=True):
    """The price of the burst endpoints (`burst: true` in the endpoints file) of some models in a region: serverless
    endpoints, which cost money only while they run."""

    models: NonEmpty[tuple[ModelRef, ...]]
    """Names of the models."""
    cost_per_second: Annotated[float, bounds(ge=0, le=1e6)]
    """Price of a second of one request, from its start to its end, cold start included: the price of a server, divided
    by the number of requests that it runs at once."""
    idle_s: Annotated[float, bounds(ge=0, le=86_400)] = 60.0
    """Time (s) without a request after which the provider stops the server: the next request is a cold start."""
    cold_start_s: Annotated[float, bounds(ge=0, le=3600)] = 30.0
    """Expected time (s) of a cold start until one has been measured."""
    for_batches: bool | UnsetType = UNSET
    """Whether requests of batches and asynchronous requests that enter in the region use the endpoints, too. They do if
    no request that precedes them waits, and if a slot is expected later by more than the price counts as latency.
    Default: false."""


class Region(PolicyStruct, frozen=True):
    """One site that serves. It is in the jurisdiction of its country and of every bloc that contains the country."""

    name: Label
    """Unique name, such as `eu-de`."""
    country: CountryRef
    """ISO 3166-1 alpha-2 code of the country where the hardware stands."""
    latitude_deg: Annotated[float, bounds(ge=-90, le=90)]
    """Degrees north."""
    longitude_deg: Annotated[float, bounds(ge=-180, le=180)]
    """Degrees east."""
    jurisdictions: Annotated[frozenset[str], DERIVED] = frozenset()
    """The country and the blocs of the country, such as {"DE", "EU", "EEA"}."""
    cost_per_gpu_hour: Annotated[float, bounds(ge=0, le=1e6)] = 1.0
    """Price of a GPU hour in this region; all prices of a bundle are in the same currency."""
    city: Annotated[str, length(0, 100)] = ""
    """City, shown in status."""
    egress_cost_per_gb: Annotated[float, bounds(ge=0, le=1e6)] = 0.0
    """Price of 10^9 bytes that leave this region for another one, in the same currency."""
    bias_ms: RttMs = 0.0
    """Distance (ms) that is added to the real distance of this region, for every origin and client, its own included.
    With 30, a client or origin that is less than 30 ms nearer to this region than to another region uses the other
    region."""
    spillover_order: tuple[RegionRef, ...] = ()
    """Names of the regions that receive this region's overflow first: each is filled to its target before the next;
    the other regions follow, nearest and cheapest first."""
    entry: RegionEntry | UnsetType = UNSET
    """Where clients enter the region: named by refusals (421) and DNS."""
    role: RegionRole | UnsetType = UNSET
    """What the region is for while no other region is lost. Absent: active."""

    price_hours: Hours | UnsetType = UNSET
    """Prices of a GPU hour by time of day and day of the week; the first that covers the time applies, and
    `cost_per_gpu_hour` at all other times. Planning, the placement of batch requests, the ledger and what-if use the
    price of the time; limits of spillover compare `cost_per_gpu_hour`."""
    spot: Annotated[tuple[SpotPool, ...], Meta(extra_json_schema={"maxItems": 64})] | UnsetType = UNSET
    """Models whose endpoints in this region are spot capacity, with its prices, which apply in place of those of the
    region."""
    burst: Annotated[tuple[BurstPool, ...], Meta(extra_json_schema={"maxItems": 64})] | UnsetType = UNSET
    """Models that burst endpoints serve while no slot of the region's own endpoints is free, requests of other regions
    included, which use them last. Burst endpoints of other models receive no requests."""
    price_time_zone: Annotated[str, length(1, 64)] | UnsetType = UNSET
    """Time zone of all `price_hours` of the region, by IANA name, such as `Europe/Berlin`. Default: UTC."""

    @property
    def is_standby(self) -> bool:
        """Whether the region is passive or a pilot light."""
        return self.role is RegionRole.PASSIVE or self.role is RegionRole.PILOT_LIGHT

    def conflict(self) -> Conflict | None:
        spot = self.spot or ()
        for field, pools in (("spot", spot), ("burst", self.burst or ())):
            named = [model for pool in pools for model in pool.models]
            if len(set(named)) < len(named):
                return Conflict(f"{field} names a model twice", "give each model one price")
        if self.price_time_zone is UNSET or self.price_hours or any(pool.price_hours for pool in spot):
            return None
        return Conflict("price_time_zone without price_hours", "add price_hours, or remove price_time_zone")

    def spot_of(self, model: str) -> SpotPool | None:
        """Return the spot capacity that serves a model here; None if its endpoints are no spot capacity."""
        return next((pool for pool in self.spot or () if model in pool.models), None)

    def burst_of(self, model: str) -> BurstPool | None:
        """Return the price of the burst endpoints of a model here; None if they receive no requests."""
        return next((pool for pool in self.burst or () if model in pool.models), None)


class Bloc(PolicyStruct, frozen=True):
    """A named group of countries. EU, EU-TERRITORIES, EEA, EFTA and GCC are built in; a document of one of these names
    takes the place of the built-in bloc."""

    name: BlocName
    """Unique name, such as `EU`; must not be the code of a country."""
    members: NonEmpty[tuple[PlaceRef, ...]]
    """ISO 3166-1 alpha-2 codes of countries, and names of other blocs, all of whose countries are members."""


class GeoRouting(PolicyStruct, frozen=True):
    """Measured distances between regions. At most one per bundle."""

    rtt_ms: dict[RegionRef, dict[RegionRef, RttMs]] = msgspec.field(default_factory=dict)
    """Measured round trips (ms) from origin to server; a missing pair is estimated from the distance on Earth."""


class ClientLocations(PolicyStruct, frozen=True):
    """Locations of clients; a client in either list matches."""

    countries: NonEmpty[tuple[PlaceRef, ...]] = ()
    """ISO 3166-1 alpha-2 codes and names of blocs."""
    subdivisions: NonEmpty[tuple[SubdivisionRef, ...]] = ()
    """ISO 3166-2 codes of a country's first level, such as `US-CA`; a map that lists the subdivision takes precedence
    over a map of the whole country."""

    def conflict(self) -> Conflict | None:
        if self.countries or self.subdivisions:
            return None
        return Conflict("selects no clients", "write `countries`, `subdivisions`, or both")


class EntryMapDocument(PolicyStruct, frozen=True):
    """Preferred entry regions of clients in some locations. Residency takes precedence over the preference."""

    name: Label
    """Unique name; of several maps that match a client, the first by name counts."""
    clients: ClientLocations
    """Clients that the map applies to; a client whose location is unknown matches no map."""
    regions: NonEmpty[tuple[RegionRef, ...]]
    """Names of regions, best first; the other permitted regions follow, nearest first."""


class EntryMap(PolicyStruct, frozen=True):
    """A compiled `EntryMapDocument`: its blocs are expanded to countries."""

    name: str
    client_countries: frozenset[str]
    client_subdivisions: frozenset[str]
    regions: tuple[str, ...]
