"""Kinds for data residency."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import (
    REMEDY,
    Label,
    ModelName,
    NonEmptyList,
    PolicyDocument,
    StrictModel,
    SubdivisionCode,
    Text,
)


class RequestMatch(StrictModel):
    """Requests that a rule applies to: requests that match every field present. `{}` matches all requests.

    An absent field matches everything. An empty list is an error, because it could be read as "none".
    """

    tenants: NonEmptyList[Label] = Field(default_factory=list)
    """Names of tenants."""
    data_classes: NonEmptyList[Label] = Field(default_factory=list)
    """Names of data classes."""
    countries: NonEmptyList[str] = Field(default_factory=list)
    """Location of the client: ISO 3166-1 alpha-2 codes and names of blocs. With this field the rule *governs*: a
    request that matches all other fields is refused while its location is unknown."""
    subdivisions: NonEmptyList[SubdivisionCode] = Field(default_factory=list)
    """Location of the client below its country: ISO 3166-2 codes of the first level, such as `US-CA`, as in GeoIP City
    databases. A client in `countries` or in `subdivisions` matches. With this field the rule governs too: a request is
    refused while only the client's country is known and the country has a subdivision listed here."""


class RegionSelector(StrictModel):
    """Regions by name or by jurisdiction; a region in either list is selected."""

    regions: NonEmptyList[Label] = Field(default_factory=list)
    """Names of regions."""
    jurisdictions: NonEmptyList[str] = Field(default_factory=list)
    """ISO 3166-1 alpha-2 codes of countries and names of blocs."""

    @classmethod
    def none(cls) -> Self:
        """Return the selector of a rule without the field: an empty selector, which a bundle cannot contain."""
        return cls.model_construct()

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.regions and not self.jurisdictions:
            raise PydanticCustomError(
                REMEDY, "selects no region", {"remedy": "write `regions`, `jurisdictions`, or both"}
            )
        return self


class ResidencyRuleDocument(PolicyDocument):
    """Restricts the regions that may process matching requests. Rules are cumulative: a rule only removes regions."""

    kind: Literal["ResidencyRule"]
    name: Label
    """Unique name; refusals and audits cite it."""
    description: Text = Field("", max_length=500)
    """Free text: the reason for the rule."""
    match: RequestMatch
    """Requests that the rule applies to."""
    allow: RegionSelector = Field(default_factory=RegionSelector.none)
    """Only these regions may process the request."""
    deny: RegionSelector = Field(default_factory=RegionSelector.none)
    """These regions may not process the request, regardless of other rules."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set & {"allow", "deny"}:
            raise PydanticCustomError(REMEDY, "the rule has no effect", {"remedy": "write `allow`, `deny`, or both"})
        return self


class AcceptedRemovalDocument(PolicyDocument):
    """Accepts that the bundle no longer has these documents.

    Without it, a bundle is refused that removes a residency rule or a data class in use, or more than a quarter (and at
    least two, or the only one) of the tenants, regions, models or routes of the policy in force: its files may have
    been lost or cut off. A listed name must not be in the bundle; a rule that loses entries gets another name.
    """

    kind: Literal["AcceptedRemoval"]
    name: Label
    """Unique name."""
    residency_rules: NonEmptyList[Label] = Field(default_factory=list)
    """Names of removed residency rules."""
    data_classes: NonEmptyList[Label] = Field(default_factory=list)
    """Names of removed data classes."""
    tenants: NonEmptyList[Label] = Field(default_factory=list)
    """Names of removed tenants."""
    regions: NonEmptyList[Label] = Field(default_factory=list)
    """Names of removed regions."""
    models: NonEmptyList[ModelName] = Field(default_factory=list)
    """Names of removed models."""
    routes: NonEmptyList[Label] = Field(default_factory=list)
    """Names of removed routes."""
    because: Text = Field(min_length=1, max_length=500)
    """Free text: the reason for the removal."""

    def lists(self) -> list[tuple[str, str, list[str]]]:
        """Return the field, the kind of document and the names of each list."""
        return [(field, kind, getattr(self, field)) for field, kind in _REMOVED_KINDS.items()]


class AcceptedLossDocument(PolicyDocument):
    """Accepts that requests confined to these regions are refused while all of them are lost.

    Does not affect requests: `penstock policy verify` fails for a residency class that does not survive the loss of a
    region unless an AcceptedLoss names its regions and the reason.
    """

    kind: Literal["AcceptedLoss"]
    name: Label
    """Unique name."""
    regions: NonEmptyList[Label]
    """All the regions that the residency class permits."""
    because: Text = Field(min_length=1, max_length=500)
    """Free text: the reason for accepting the loss, and the handling of such requests during the loss."""


_REMOVED_KINDS = {
    "residency_rules": "ResidencyRule",
    "data_classes": "DataClass",
    "tenants": "Tenant",
    "regions": "Region",
    "models": "Model",
    "routes": "Route",
}
