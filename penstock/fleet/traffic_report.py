"""Reports of demand by country, queues and spill credits, for operators only: the planner does not use them."""

from __future__ import annotations

from math import isfinite

import msgspec

MAX_COUNTRIES = 300
"""Maximum number of countries in one report: more than ISO 3166-1 has."""

MAX_COUNTRY = 2
"""Maximum length, in characters, of a country's code."""


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
