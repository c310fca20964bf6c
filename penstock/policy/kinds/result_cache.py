"""Kind of policy document: which responses are kept, and for which later requests."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from penstock.policy.fields import REQUIRED, Label, NonEmpty, PolicyStruct, bounds, length

MAX_AGE_S: Final = 604_800
"""Longest lifetime of a response (s): seven days."""

SMALL_BYTES: Final = 1_048_576
"""Size (bytes) up to which a response is kept in memory and in Redis; larger ones are in the job store."""

MAX_RESPONSE_BYTES: Final = 16 * SMALL_BYTES

_Pattern = Annotated[str, length(1, 128)]


class CacheScope(StrEnum):
    """Who receives the response to an identical request."""

    TENANT = "tenant"
    """Only the tenant whose request created the response."""
    SHARED = "shared"
    """Every tenant of the document. A tenant can find out whether another one has sent the same request before."""


class ResultCache(PolicyStruct, frozen=True):
    """Responses to deterministic requests are kept in the region, and sent again without an engine run. Without such
    a document none are kept. The first one by name that matches route and tenant applies.

    The response is kept where the client's request arrived, if the request may be served in that region.
    """

    name: Label
    """Unique name."""
    routes: Annotated[NonEmpty[tuple[_Pattern, ...]], REQUIRED] = ()
    """Names of routes, with `*` for any characters."""
    tenants: Annotated[NonEmpty[tuple[_Pattern, ...]], REQUIRED] = ()
    """Names of tenants, with `*` for any characters."""
    scope: CacheScope = CacheScope.TENANT
    """Who receives a kept response."""
    max_age_s: Annotated[int, bounds(ge=1, le=MAX_AGE_S)] = 3600
    """Lifetime (s) of a response."""
    max_response_bytes: Annotated[int, bounds(ge=1, le=MAX_RESPONSE_BYTES)] = 65_536
    """Maximum size (bytes) of a response that is kept. Those above 1 MiB are kept in the region's job store; without
    one, and where residency forbids the request in a region that reads the store, they are not kept."""
    max_bytes: Annotated[int, bounds(ge=1_000_000, le=1_000_000_000_000)] = 256_000_000
    """Bytes that the responses of this document may take in the Redis of each region; those that expire first are
    removed for further ones."""
    price_percent: Annotated[float, bounds(ge=0, le=100)] = 0.0
    """Part (%) of the price that a tenant pays for a kept response. At 0, its tokens are not usage of the tenant
    either; above 0, they count in full."""
    max_stored_bytes: Annotated[int, bounds(ge=1_000_000, le=1_000_000_000_000_000)] = 10_000_000_000
    """Bytes that the responses of this document above 1 MiB may take in the job store for each region; those that
    expire first are deleted for further ones."""
