"""Reports of countries, tenants, queues and spill credits, for operators only: the planner does not use them."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_COUNTRIES = 300
"""Maximum number of countries in one report: more than ISO 3166-1 has."""

MAX_COUNTRY = 2
"""Maximum length, in characters, of a country's code."""


MAX_TENANTS = 20
"""Maximum number of tenants in one report and of one region, the busiest."""

_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class CountryReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Demand of this agent's clients in one country. Encoded as an array: append new fields at the end."""

    country: str
    """ISO 3166-1 alpha-2; empty for clients without a known location."""
    requests_per_s: float

    @property
    def is_possible(self) -> bool:
        """Whether code and rate are in range."""
        return len(self.country) <= MAX_COUNTRY and isfinite(self.requests_per_s) and self.requests_per_s >= 0.0


class SpilloverReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One agent's queue and spill credits for one model. Encoded as an array: append new fields at the end."""

    model: str
    waiting: int
    """Requests in this agent's admission queue."""
    headroom: int
    """This agent's part of the region's free slots, for which it grants credits; 0 while the region is closed."""
    granted: int
    """Unexpired credits that this agent granted to other regions."""
    held: int
    """Unexpired credits that other regions granted to this agent."""

    def is_possible(self, max_count: int) -> bool:
        """Whether all counts are within the limit."""
        return all(0 <= count <= max_count for count in (self.waiting, self.headroom, self.granted, self.held))


class TenantReport(msgspec.Struct, frozen=True, gc=False):
    """The requests of one tenant now."""

    tenant: Annotated[str, Meta(max_length=256)]
    in_flight: _Count
    """Requests on endpoints of the region."""
    waiting: _Count
    """Requests in admission queues."""


def busiest_tenants(parts: Iterable[TenantReport]) -> tuple[TenantReport, ...]:
    """Return the tenants with most requests, each with the sum of its parts."""
    sums: dict[str, tuple[int, int]] = {}
    for part in parts:
        in_flight, waiting = sums.get(part.tenant, (0, 0))
        sums[part.tenant] = in_flight + part.in_flight, waiting + part.waiting
    order = sorted(sums.items(), key=lambda each: (-sum(each[1]), each[0]))
    return tuple(TenantReport(tenant, *counts) for tenant, counts in order[:MAX_TENANTS])
