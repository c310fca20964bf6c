"""Kinds of policy documents: tenants and their quotas."""

from __future__ import annotations

from penstock.policy.fields import PolicyStruct


class Quota(PolicyStruct, frozen=True):
    """Limits on a tenant's requests in each entry region."""

    requests_per_s: float | None
    """Maximum rate of new requests, per second; None for no limit."""
    burst_requests: int
    """Maximum burst of new requests after a pause."""
    concurrent: int | None
    """Maximum number of concurrent requests; None for no limit."""


class Tenant(PolicyStruct, frozen=True):
    """An owner of requests."""

    name: str
    data_class: str
    """Name of the kind of data in its requests, which residency rules match."""
    key_digests: tuple[str, ...] = ()
    """SHA-256 of each API key, lower-case hex; the keys themselves are not stored."""
    priority: int = 0
    """Waiting requests of higher priority are served first."""
    quota: Quota | None = None
    """Limits on the tenant's requests; None for no limit."""
