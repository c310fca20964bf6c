"""Weight of other agents' in-flight counts by age: the shared view of a region loses weight gradually.

An agent has exact counts of its own requests and reads the other agents' counts from a shared store. While the store is
unavailable, the last counts lose weight until only the agent's own remain. A sudden change in either direction would
send the requests of every agent to the same, apparently idle endpoints at once.
"""

from __future__ import annotations

from math import ceil

FRESH_S = 0.5
"""Age (s) up to which a count has full weight: agents write and read at least this often while the store is
available."""

LEASE_S = 2.0
"""Lifetime (s) of an agent's counts after its last write, and the age at which a count has no weight."""


def weight_at_age(age_s: float) -> float:
    """Returns the weight (0-1) of a count of this age: 1 while fresh, 0 once every writer's lease has expired."""
    return max(0.0, min(1.0, (LEASE_S - age_s) / (LEASE_S - FRESH_S)))


def weighted_count(others: int, weight: float) -> int:
    """Returns other agents' requests to account for, rounded up so that the last one is kept longest."""
    return ceil(others * weight)
