"""Kinds of policy documents: data residency, and what a bundle accepts to lose."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType

from penstock.policy.fields import (
    Conflict,
    DataClassRef,
    Label,
    ModelName,
    NonEmpty,
    PlaceRef,
    PolicyStruct,
    RegionRef,
    SubdivisionRef,
    TenantRef,
    length,
)

Because = Annotated[str, length(1, 500)]


class RequestMatch(PolicyStruct, frozen=True):
    """Requests that a rule applies to: requests that match every field present. `{}` matches all requests.

    An absent field matches everything. An empty list is an error, because it could be read as "none".
    """

    tenants: NonEmpty[tuple[TenantRef, ...]] = ()
    """Names of tenants."""
    data_classes: NonEmpty[tuple[DataClassRef, ...]] = ()
    """Names of data classes."""
    countries: NonEmpty[tuple[PlaceRef, ...]] = ()
    """Location of the client: ISO 3166-1 alpha-2 codes and names of blocs. With this field the rule *governs*: a
    request that matches all other fields is refused while its location is unknown."""
    subdivisions: NonEmpty[tuple[SubdivisionRef, ...]] = ()
    """Location of the client below its country: ISO 3166-2 codes of the first level, such as `US-CA`, as in GeoIP City
    databases. A client in `countries` or in `subdivisions` matches. With this field the rule governs too: a request is
    refused while only the client's country is known and the country has a subdivision listed here."""


class RegionSelector(PolicyStruct, frozen=True):
    """Regions by name or by jurisdiction; a region in either list is selected."""

    regions: NonEmpty[tuple[RegionRef, ...]] = ()
    """Names of regions."""
    jurisdictions: NonEmpty[tuple[PlaceRef, ...]] = ()
    """ISO 3166-1 alpha-2 codes of countries and names of blocs."""

    def conflict(self) -> Conflict | None:
        if self.regions or self.jurisdictions:
            return None
        return Conflict("selects no region", "write `regions`, `jurisdictions`, or both")


class ResidencyRuleDocument(PolicyStruct, frozen=True):
    """Restricts the regions that may process matching requests. Rules are cumulative: a rule only removes regions."""

    name: Label
    """Unique name; refusals and audits cite it."""
    match: RequestMatch
    """Requests that the rule applies to."""
    allow: RegionSelector | UnsetType = UNSET
    """Only these regions may process the request."""
    deny: RegionSelector | UnsetType = UNSET
    """These regions may not process the request, regardless of other rules."""

    def conflict(self) -> Conflict | None:
        if self.allow is not UNSET or self.deny is not UNSET:
            return None
        return Conflict("the rule has no effect", "write `allow`, `deny`, or both")


class ResidencyRule(PolicyStruct, frozen=True):
    """A compiled `ResidencyRuleDocument`: blocs are expanded to countries, and jurisdictions to regions. An empty set
    of tenants, data classes or locations matches all requests."""

    name: str
    tenants: frozenset[str] = frozenset()
    data_classes: frozenset[str] = frozenset()
    client_countries: frozenset[str] = frozenset()
    client_subdivisions: frozenset[str] = frozenset()
    allow: frozenset[str] | None = None
    """Names of the regions that may process the request; None for no restriction."""
    deny: frozenset[str] = frozenset()
    source: str = ""
    """File and line of the rule."""


class AcceptedLoss(PolicyStruct, frozen=True):
    """Accepts that requests confined to these regions are refused while all of them are lost.

    Does not affect requests: `penstock policy verify` fails for a residency class that does not survive the loss of a
    region unless an AcceptedLoss names its regions and the reason.
    """

    name: Label
    """Unique name."""
    regions: NonEmpty[frozenset[RegionRef]]
    """All the regions that the residency class permits."""
    because: Because
    """Free text: the reason for accepting the loss, and the handling of such requests during the loss."""


class AcceptedRemoval(PolicyStruct, frozen=True):
    """Accepts that the bundle no longer has these documents.

    Without it, a bundle is refused that removes a residency rule, a data class in use, a tier, a price list, a usage
    store, a job store, or more than a quarter (and at least two, or the only one) of the tenants, regions, models or
    routes of the policy in force: its files may have been lost or cut off. A listed name must not be in the bundle; a
    rule that loses entries gets another name.
    """

    name: Label
    """Unique name."""
    because: Because
    """Free text: the reason for the removal."""
    residency_rules: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed residency rules."""
    data_classes: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed data classes."""
    tenants: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed tenants."""
    tiers: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed tiers."""
    prices: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed price lists."""
    usage_stores: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed usage stores."""
    job_stores: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed job stores."""
    regions: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed regions."""
    models: NonEmpty[tuple[ModelName, ...]] = ()
    """Names of removed models."""
    routes: NonEmpty[tuple[Label, ...]] = ()
    """Names of removed routes."""

    def lists(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return the field, the kind of document and the names of each list."""
        return [(field, kind, getattr(self, field)) for field, kind in _REMOVED_KINDS.items()]


_REMOVED_KINDS = {
    "residency_rules": "ResidencyRule",
    "data_classes": "DataClass",
    "tenants": "Tenant",
    "tiers": "Tier",
    "prices": "Prices",
    "usage_stores": "UsageStore",
    "job_stores": "JobStore",
    "regions": "Region",
    "models": "Model",
    "routes": "Route",
}
