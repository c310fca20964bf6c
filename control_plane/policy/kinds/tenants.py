"""Who sends requests and what kind of data is in them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import REMEDY, KeyDigest, Label, PolicyDocument, StrictModel, Text, UniqueList


class DataClassDocument(PolicyDocument):
    """A kind of data that residency rules speak of; named here so that a misspelt one is noticed."""

    kind: Literal["DataClass"]
    name: Label
    """Unique name, such as `eu-personal`."""
    description: Text = Field("", max_length=500)
    """For people: what belongs to it."""


class QuotaSpec(StrictModel):
    """How much a tenant may ask of each region that its clients come to. A region's agents enforce equal parts of it:
    where clients spread over agents unevenly, some are refused before the whole is used."""

    requests_per_s: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Requests that may start a second; null for any number."""
    burst_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that may start at once after a pause. null: what `requests_per_s` allows in one second, at least 1."""
    concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that may run at once, from when they are let in until their answer has ended; null for any number."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.requests_per_s is None and self.concurrent is None:
            raise PydanticCustomError(
                REMEDY, "limits nothing", {"remedy": "give a number for one, or write `quota: null`"}
            )
        return self


class TenantDocument(PolicyDocument):
    """Who requests belong to."""

    kind: Literal["Tenant"]
    name: Label
    """Unique name; it stands in metrics and audits."""
    data_class: Label
    """Name of the data class of everything in its requests."""
    priority: int = Field(0, ge=-1000, le=1000)
    """Higher goes first where something must wait."""
    quota: QuotaSpec | None = None
    """What it may ask for at most; beyond it requests are refused with 429 `quota_exceeded`. null for no limit."""
    key_digests: UniqueList[KeyDigest] = Field(default_factory=list)
    """SHA-256 of each of its API keys in lower-case hexadecimal. Never the keys."""


class AnonymousAccessDocument(PolicyDocument):
    """What becomes of requests that carry no key. Exactly one a bundle."""

    kind: Literal["AnonymousAccess"]
    tenant: Label | None = None
    """The tenant they belong to; null refuses them."""
