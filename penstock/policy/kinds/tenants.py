"""Kinds of policy documents: tenants and their quotas, data classes, access without a key and from browsers."""

from __future__ import annotations

from math import ceil
from typing import Annotated

from msgspec import Meta

from penstock.policy.fields import Conflict, DataClassRef, KeyDigest, Label, Origin, PolicyStruct, TenantRef, bounds


class DataClass(PolicyStruct, frozen=True):
    """A kind of data that residency rules match; declared so that a misspelled name is an error."""

    name: Label
    """Unique name, such as `eu-personal`."""


class Quota(PolicyStruct, frozen=True):
    """Limits of a tenant in each region in which its clients enter.

    Each agent of a region enforces an equal part: where clients are spread over agents unevenly, some requests are
    refused before the whole quota is used.
    """

    requests_per_s: Annotated[float, bounds(gt=0, le=1e6)] | None
    """Requests that may start per second; null: no limit."""
    burst_requests: Annotated[int, bounds(ge=1, le=1_000_000)] | None
    """Requests that may start at once after a pause. null: the number that `requests_per_s` allows in one second, at
    least 1."""
    concurrent: Annotated[int, bounds(ge=1, le=1_000_000)] | None
    """Requests that may run at once, from admission to the end of the response; null: no limit."""

    @property
    def burst(self) -> int:
        """Requests that may start at once after a pause."""
        return self.burst_requests or max(1, ceil(self.requests_per_s or 0.0))

    def conflict(self) -> Conflict | None:
        if self.requests_per_s is not None or self.concurrent is not None:
            return None
        return Conflict("limits nothing", "write requests_per_s or concurrent, or remove the quota")


class Tenant(PolicyStruct, frozen=True):
    """An owner of requests."""

    name: Label
    """Unique name, used in metrics and audit entries."""
    data_class: DataClassRef
    """Name of the data class of all its requests."""
    key_digests: tuple[KeyDigest, ...] = ()
    """SHA-256 of each of its API keys in lower-case hexadecimal; never the keys themselves."""
    priority: Annotated[int, bounds(ge=-1000, le=1000)] = 0
    """Priority of the tenant's requests: requests with a higher priority leave a queue first."""
    quota: Quota | None = None
    """Limits of the tenant; requests beyond them are refused with 429 `quota_exceeded`. null: no limit."""


class AnonymousAccess(PolicyStruct, frozen=True):
    """Handling of requests without a key. At most one per bundle."""

    tenant: TenantRef | None = None
    """Tenant to which such requests belong; null: refuse them."""


class BrowserAccess(PolicyStruct, frozen=True):
    """Web pages that may use the fleet from a browser (CORS). At most one per bundle; without it, none may.

    The pages need the API key of a tenant as all clients do. A key that a page contains is known to all its visitors:
    give such keys a tenant of their own, with a quota.
    """

    cors_origins: Annotated[frozenset[Origin], Meta(extra_json_schema={"maxItems": 100})] = frozenset()
    """Origins of the pages, such as `https://app.example`; `*` for all. Agents answer their preflight requests, and
    permit them to read responses, refusals included."""
