"""Kinds for regions and for blocs of countries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.base import BlocName, Label, NonEmptyList, PolicyDocument, Text, UniqueList


class RegionDocument(PolicyDocument):
    """One site that serves. It lies in the jurisdiction of its country and of every bloc that the country is in."""

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
    """Price of a GPU hour here, in one currency for the whole bundle."""
    egress_cost_per_gb: float = Field(0.0, ge=0, le=1e6)
    """Price of 10^9 bytes that leave this region for another one, in the same currency."""
    bias_ms: float = Field(0.0, ge=0, le=10_000)
    """Distance (ms) that is added to this region's real one, for every origin and client, its own included. With 30, a
    client or origin that is less than 30 ms nearer to this region than to another one uses the other one."""
    spillover_order: UniqueList[Label] = Field(default_factory=list)
    """Names of the regions that receive this region's overflow first: each is filled to its target before the next; the
    others follow, nearest and cheapest first."""


class BlocDocument(PolicyDocument):
    """A named group of countries, such as the EU."""

    kind: Literal["Bloc"]
    name: BlocName
    """Unique name that is no country's code, such as `EU`."""
    members: NonEmptyList[str]
    """ISO 3166-1 alpha-2 codes of countries, and names of other blocs whose countries all belong."""
