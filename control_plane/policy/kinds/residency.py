"""Where requests may ever be."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import (
    REMEDY,
    Label,
    NonEmptyList,
    PolicyDocument,
    StrictModel,
    SubdivisionCode,
    Text,
)


class Match(StrictModel):
    """Which requests a rule is about: those that fit every field given. `{}` is all of them.

    A field that is absent narrows nothing; one that is there but empty is refused, since it reads like "none".
    """

    tenants: NonEmptyList[Label] = Field(default_factory=list)
    """Names of tenants."""
    data_classes: NonEmptyList[Label] = Field(default_factory=list)
    """Names of data classes."""
    countries: NonEmptyList[str] = Field(default_factory=list)
    """Where the client is: ISO 3166-1 alpha-2 codes and names of blocs. With this field the rule *governs*: a request
    that fits otherwise is refused while its location is unknown."""
    subdivisions: NonEmptyList[SubdivisionCode] = Field(default_factory=list)
    """Where the client is, more closely: ISO 3166-2 codes of a country's first level, such as `US-CA`, as GeoIP City
    databases have them. A client in one of `countries` or of these fits. With this field the rule governs too: while
    only a client's country is known, and some of these are in it, its request is refused."""


class Places(StrictModel):
    """Regions, by name or by the jurisdiction they lie in; a region in either list counts."""

    regions: NonEmptyList[Label] = Field(default_factory=list)
    """Names of regions."""
    jurisdictions: NonEmptyList[str] = Field(default_factory=list)
    """ISO 3166-1 alpha-2 codes of countries and names of blocs."""

    @classmethod
    def none(cls) -> Self:
        """What a rule without the field names: no place at all, which cannot be written."""
        return cls.model_construct()

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.regions and not self.jurisdictions:
            raise PydanticCustomError(REMEDY, "names no place", {"remedy": "write `regions`, `jurisdictions`, or both"})
        return self


class ResidencyRuleDocument(PolicyDocument):
    """Narrows where matching requests may ever be. Rules add up: each takes away, none gives back; deny wins."""

    kind: Literal["ResidencyRule"]
    name: Label
    """Unique name; refusals and audits cite it."""
    description: Text = Field("", max_length=500)
    """For people: why the rule is there."""
    match: Match
    """Which requests it is about."""
    allow: Places = Field(default_factory=Places.none)
    """Nothing outside these places may touch the request."""
    deny: Places = Field(default_factory=Places.none)
    """These places may not, whatever any rule allows."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set & {"allow", "deny"}:
            raise PydanticCustomError(REMEDY, "the rule changes nothing", {"remedy": "write `allow`, `deny`, or both"})
        return self


class AcceptedLossDocument(PolicyDocument):
    """Says that requests which may only run in these regions may find none when all of them are lost.

    Changes nothing about any request: `penstock policy verify` fails for a residency class that does not survive the
    loss of a region, unless somebody has written down here that this is meant, and why.
    """

    kind: Literal["AcceptedLoss"]
    name: Label
    """Unique name."""
    regions: NonEmptyList[Label]
    """All the regions that the residency class permits."""
    because: Text = Field(min_length=1, max_length=500)
    """For people: why this is accepted, and what becomes of such requests meanwhile."""
