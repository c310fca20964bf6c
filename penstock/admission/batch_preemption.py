"""Which running batch requests of a region end, so that a request with a priority need not wait for their end.

A waiting request costs at most one running one: as many requests end as wait beyond the free slots, and the slots that
become free are the waiting requests' own, since no batch request starts while a request with a priority waits. The
youngest request ends first, since it has computed least. A request that was preempted MAX_PREEMPTIONS times runs to its
end, so that each request completes under any load that leaves it a slot.

All agents of a region apply the same rule to what they publish to each other. An agent ends its own requests for its
own waiting ones first; the agents that have more running batch requests than they need end them for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAX_PREEMPTIONS: Final = 3
"""Number of preemptions after which a request runs to its end."""


class AgentBatch(NamedTuple):
    """One agent's share in the batch work of a pool."""

    agent: str
    waiting: int
    """Requests with a priority that wait at the agent."""
    preemptible: int
    """Running batch requests of the agent that may be preempted."""


class RunningRequest(NamedTuple):
    """A running batch request."""

    since: float
    """Time (s) at which it started."""
    number: int
    """Identifies the request for the caller."""


def preemptions_of(agent: str, agents: Iterable[AgentBatch], free_slots: int) -> int:
    """Return how many of its running batch requests an agent ends now.

    Args:
        agents: the agents of the region, `agent` included.
        free_slots: slots of the pool that no request occupies; waiting requests are about to use them.
    """
    ordered = sorted(agents)
    lacking = max(0, sum(each.waiting for each in ordered) - max(0, free_slots))
    ends: dict[str, int] = {}
    for each in ordered:
        ends[each.agent] = min(each.waiting, each.preemptible, lacking)
        lacking -= ends[each.agent]
    for each in ordered:
        more = min(each.preemptible - ends[each.agent], lacking)
        ends[each.agent] += more
        lacking -= more
    return ends.get(agent, 0)


def first_to_end(running: Sequence[RunningRequest], count: int) -> list[int]:
    """Return the numbers of the `count` requests that end first: those that started last."""
    return [each.number for each in sorted(running, reverse=True)[:count]]
