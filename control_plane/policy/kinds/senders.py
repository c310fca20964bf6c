"""Who sends requests and what kind of data is in them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.shape import EachOnce, KeyDigest, Label, PolicyDocument


class DataClassDocument(PolicyDocument):
    """A kind of data that residency rules speak of; named here so that a misspelt one is noticed."""

    kind: Literal["DataClass"]
    name: Label
    """Unique name, such as `eu-personal`."""
    description: str = Field(max_length=500)
    """For people: what belongs to it."""


class TenantDocument(PolicyDocument):
    """Who requests belong to."""

    kind: Literal["Tenant"]
    name: Label
    """Unique name; it stands in metrics and audits."""
    data_class: Label
    """Name of the data class of everything in its requests."""
    priority: int = Field(ge=-1000, le=1000)
    """Higher goes first where something must wait."""
    key_digests: EachOnce[KeyDigest]
    """SHA-256 of each of its API keys in lower-case hexadecimal. Never the keys."""


class AnonymousAccessDocument(PolicyDocument):
    """What becomes of requests that carry no key. Exactly one a bundle."""

    kind: Literal["AnonymousAccess"]
    tenant: Label | None
    """The tenant they belong to; null refuses them."""
