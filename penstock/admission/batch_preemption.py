"""Which running batch requests of a region end, so that a request with a priority need not wait for their end.

A waiting request costs at most one running one: as many requests end as wait beyond the free slots, and the slots that
become free are the waiting requests' own, since no batch request starts while a request with a priority waits. The
youngest request ends first, since it has computed least. A request that was preempted MAX_PREEMPTIONS times runs to its
end, so that each request completes under any load that leaves it a slot.

Most of what is lost is lost in bursts, which reach requests that have computed for long. So policy may let a request
wait for a time, its patience, in which some slot often becomes free by itself: until then, it ends only requests that
have run for less than YOUNG_PART of the patience.

All agents of a region apply the same rule to what they publish to each other. An agent ends its own requests for its
own waiting ones first; the agents that have more running batch requests than they need end them for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAX_PREEMPTIONS: Final = 3
"""Number of preemptions after which a request runs to its end."""


YOUNG_PART: Final = 1 / 3
"""Part of the patience: requests that have run for less end for those that have not waited for it."""


class AgentBatch(NamedTuple):
    """One agent's share in the batch work of a pool."""

    agent: str
    waiting: int
    """Requests with a priority that wait at the agent."""
    preemptible: int
    """Running batch requests of the agent that may be preempted."""
    patient: int
    """Of the waiting requests, those that have waited for their patience."""


class RunningRequest(NamedTuple):
    """A running batch request."""

    since: float
    """Time (s) at which it started."""
    number: int
    """Identifies the request for the caller."""


class Preemptions(NamedTuple):
    """How many of its running batch requests an agent ends now."""

    of_any_age: int
    of_young_ones: int
    """At most; further ones than those of any age."""


def preemptions_of(agent: str, agents: Iterable[AgentBatch], free_slots: int) -> Preemptions:
    """Return how many of its running batch requests an agent ends now.

    Args:
        agents: the agents of the region, `agent` included.
        free_slots: slots of the pool that no request occupies; waiting requests are about to use them.
    """
    ordered = sorted(agents)
    of_any_age = _ends(agent, ordered, [each.patient for each in ordered], free_slots)
    of_all = _ends(agent, ordered, [each.waiting for each in ordered], free_slots)
    return Preemptions(of_any_age, max(0, of_all - of_any_age))


def _ends(agent: str, agents: Sequence[AgentBatch], waiting: Sequence[int], free_slots: int) -> int:
    """Return how many requests `agent` ends if these wait at the agents."""
    lacking = max(0, sum(waiting) - max(0, free_slots))
    ends: dict[str, int] = {}
    for each, here in zip(agents, waiting, strict=True):
        ends[each.agent] = min(here, each.preemptible, lacking)
        lacking -= ends[each.agent]
    for each in agents:
        more = min(each.preemptible - ends[each.agent], lacking)
        ends[each.agent] += more
        lacking -= more
    return ends.get(agent, 0)


def first_to_end(
    running: Sequence[RunningRequest], preemptions: Preemptions, now: float, patience_s: float
) -> list[int]:
    """Return the numbers of the requests that end now: those that started last."""
    ordered = sorted(running, reverse=True)
    ends, others = ordered[: preemptions.of_any_age], ordered[preemptions.of_any_age :][: preemptions.of_young_ones]
    return [each.number for each in (*ends, *(each for each in others if is_young(each.since, now, patience_s)))]


def is_young(since: float, now: float, patience_s: float) -> bool:
    """Whether a request that runs since a time (s) ends for one that has not waited for its patience (s)."""
    return now - since < YOUNG_PART * patience_s
