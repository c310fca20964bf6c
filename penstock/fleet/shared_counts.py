"""How much of what other agents said is still believed: the in-flight counts of a region, mirrored and fading.

An agent knows its own requests exactly and hears of the others' through a shared store. While that is away, what it
heard last loses weight gradually, until only its own count is left; a jump either way would herd every agent onto the
endpoints that look empty at the same moment.
"""

from __future__ import annotations

from math import ceil

FRESH_S = 0.25
"""A count this old (s) still counts in full: agents refresh it at least this often while the store answers."""

LEASE_S = 2.0
"""An agent's counts live this long (s) after it last wrote them, and so does belief in them."""


def belief(age_s: float) -> float:
    """How much (0-1) a count this old counts: whole while fresh, nothing once every writer's lease is over."""
    return max(0.0, min(1.0, (LEASE_S - age_s) / (LEASE_S - FRESH_S)))


def believed(others: int, weight: float) -> int:
    """Requests of other agents to reckon with: their count by `belief`, rounded up so that a last one stays longest."""
    return ceil(others * weight)
