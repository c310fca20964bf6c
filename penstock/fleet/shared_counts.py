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


MIN_INTERVAL_S = 0.01
"""Minimum time (s) between two exchanges; requests that begin and end in between share one."""

IDLE_INTERVAL_S = 0.1
"""Time (s) between two exchanges in an idle region, so that the loads of all its agents stay fresh."""

ACTIVE_S = 1.0
"""Time (s) without a change of the other agents' load after which the region is idle."""


def exchange_interval_s(quiet_s: float, *, requests_wait: bool) -> float:
    """Returns the time (s) until an agent whose own load does not change exchanges load again.

    With ten agents in front of twenty engines of one slot each, views up to IDLE_INTERVAL_S old miss one or two changes
    of the other agents, and the 99th percentile end to end is a tenth longer (`make sim`).

    Args:
        quiet_s: time since the load or the queues of other agents last changed, in seconds.
        requests_wait: whether requests wait at this agent.
    """
    return MIN_INTERVAL_S if requests_wait or quiet_s < ACTIVE_S else IDLE_INTERVAL_S


def weight_at_age(age_s: float) -> float:
    """Returns the weight (0-1) of a count of this age: 1 while fresh, 0 once every writer's lease has expired."""
    return max(0.0, min(1.0, (LEASE_S - age_s) / (LEASE_S - FRESH_S)))


def weighted_count(others: int, weight: float) -> int:
    """Returns the weighted number of other agents' requests, rounded up so that the last request counts longest."""
    return ceil(others * weight)
