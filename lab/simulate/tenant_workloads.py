"""Workloads of several tenants on one region, and what each tenant received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from lab.simulate.fleets import CHAT_COST, CHAT_MODEL, ChatFleet, EngineKind
from lab.simulate.region import Agent, Region, Sender, Served
from lab.traces.trace import TraceRequest

ENGINES = (EngineKind("h100", 4, 8),)
"""Four engines with eight slots each."""

DRAIN_S = 8.0
"""Time (s) from the last arrival to the end of a run, in which almost all requests end that were sent before."""

LENGTH_SD = 0.6
"""Standard deviation of the logarithm of the lengths of answers, which no agent knows beforehand."""


class TenantTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one tenant: a Poisson process."""

    name: str
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int
    """Median length of the answers."""
    agents: tuple[int, ...] = (0, 1, 2)
    """Agents to which the tenant's clients are connected."""
    begins_s: float = 0.0
    priority: int = 0
    weight: float = 1.0

    @property
    def sender(self) -> Sender:
        """The tenant as policy describes it."""
        return Sender(self.name, self.priority, self.weight)

    def requests(self, rng: Random, ends_s: float) -> list[TraceRequest]:
        """Return the requests of one run, which arrive until a time (s)."""
        found, at_s = [], self.begins_s
        while (at_s := at_s + rng.expovariate(self.rate_per_s)) < ends_s:
            tokens = max(1, round(self.output_tokens * rng.lognormvariate(0.0, LENGTH_SD)))
            found.append(TraceRequest(at_s, self.prompt_tokens, tokens, tenant=self.name))
        return found


class TenantRun(msgspec.Struct):
    """The requests of a run by tenant, until a time at which all tenants have stopped."""

    served: dict[str, list[Served[TraceRequest]]]
    ends_s: float

    def work_s(self, tenant: str, since_s: float, until_s: float) -> float:
        """Return the GPU time (s, reference) that a tenant received between two times."""
        total_s = 0.0
        for each in self.served[tenant]:
            if each.sent_at is None or each.sent_at >= until_s:
                continue
            work = (
                CHAT_COST.input_unit_s * each.request.prompt_tokens,
                CHAT_COST.output_unit_s * each.request.output_tokens,
            )
            first_at = self.ends_s if each.first_s is None else each.request.at_s + each.first_s
            end_at = max(self.ends_s, first_at) if each.end_s is None else each.request.at_s + each.end_s
            for part_s, began, ended in ((work[0], each.sent_at, first_at), (work[1], first_at, end_at)):
                within = max(0.0, min(until_s, ended) - max(since_s, began))
                total_s += part_s * within / (ended - began) if ended > began else 0.0
        return total_s

    def delays_s(self, tenant: str) -> list[float]:
        """Return the times (s) from arrival to the first token; until the end of the run for requests without one."""
        return [
            self.ends_s - each.request.at_s if each.first_s is None else each.first_s for each in self.served[tenant]
        ]

    def longest_starvation_s(self, tenant: str) -> float:
        """Return the longest time (s) in which requests of a tenant waited and none started."""
        arrivals = [(each.request.at_s, 1) for each in self.served[tenant]]
        starts = [(each.sent_at, -1) for each in self.served[tenant] if each.sent_at is not None]
        longest_s, since_s, waiting = 0.0, 0.0, 0
        for at_s, change in sorted([*arrivals, *starts, (self.ends_s, -1)]):
            if change < 0 and waiting:
                longest_s = max(longest_s, at_s - since_s)
            if change < 0 or not waiting:
                since_s = at_s
            waiting += change
        return longest_s


Agents = Callable[[Region[TraceRequest]], Sequence[Agent[TraceRequest]]]


def run_tenants(tenants: Sequence[TenantTraffic], agents: Agents, seed: int, arrivals_s: float) -> TenantRun:
    """Run the requests of tenants through the agents of a region, until DRAIN_S after the last arrivals.

    Args:
        agents: creates the agents of the region.
        arrivals_s: duration (s) of the arrivals.
    """
    ends_s = arrivals_s + DRAIN_S
    fleet = partial(ChatFleet, model=CHAT_MODEL, cost=CHAT_COST, kinds=ENGINES, known_lengths=False)
    region: Region[TraceRequest] = Region(fleet, 3, seed)
    region.senders = {tenant.name: tenant.sender for tenant in tenants}
    every = agents(region)
    region.set_agents(every)
    rng = Random(seed)
    served: dict[str, list[Served[TraceRequest]]] = {}
    for tenant in tenants:
        mine = served[tenant.name] = []
        for request in tenant.requests(rng, arrivals_s):
            each = Served(request)
            mine.append(each)
            region.clock.at(request.at_s, partial(every[rng.choice(tenant.agents)].arrive, each))
    while (next_at := region.clock.next_at) is not None and next_at <= ends_s:
        region.clock.step()
    return TenantRun(served, ends_s)
