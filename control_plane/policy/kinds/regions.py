"""Kinds for regions and for blocs of countries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.base import BlocName, Label, NonEmptyList, PolicyDocument, Text, UniqueList


class RegionDocument(PolicyDocument):
    """One site that serves. It is in the jurisdiction of its country and of every bloc that contains the country."""

    kind: Literal["Region"]
    name: Label
    """Unique name, such as `eu-de`."""
    city: Text = Field("", max_length=100)
    """City, shown in status."""
    country: str
    """ISO 3166-1 alpha-2 code of the country where the hardware stands."""
    latitude_deg: float = Field(ge=-90, le=90)
    """Degrees north."""
    longitude_deg: float = Field(ge=-180, le=180)
    """Degrees east."""
    cost_per_gpu_hour: float = Field(1.0, ge=0, le=1e6)
    """Price of a GPU hour in this region; all prices of a bundle are in the same currency."""
    egress_cost_per_gb: float = Field(0.0, ge=0, le=1e6)
    """Price of 10^9 bytes that leave this region for another one, in the same currency."""
    bias_ms: float = Field(0.0, ge=0, le=10_000)
    """Distance (ms) that is added to the real distance of this region, for every origin and client, its own included.
    With 30, a client or origin that is less than 30 ms nearer to this region than to another region uses the other
    region."""
    spillover_order: UniqueList[Label] = Field(default_factory=list)
    """Names of the regions that receive this region's overflow first: each is filled to its target before the next;
    the other regions follow, nearest and cheapest first."""


class BlocDocument(PolicyDocument):
    """A named group of countries, such as the EU."""

    kind: Literal["Bloc"]
    name: BlocName
    """Unique name, such as `EU`; must not be the code of a country."""
    members: NonEmptyList[str]
    """ISO 3166-1 alpha-2 codes of countries, and names of other blocs, all of whose countries are members."""
