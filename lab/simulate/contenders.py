"""The compared strategies of endpoint selection, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lab.simulate.baseline_agent import BalancerFactory, BaselineAgent
from lab.simulate.baselines.clairvoyant import ORDERS, CentralQueue
from lab.simulate.baselines.classic import (
    EnvoyWeightedLeastRequest,
    LeastRequest,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
)
from lab.simulate.baselines.inference import LlmdSticky, LlmdWeighted, LMetric, SkyWalker
from lab.simulate.baselines.prequal import Prequal
from lab.simulate.fleets import FleetFactory, Request
from lab.simulate.penstock_agent import UNBOUNDED, PenstockAgent
from lab.simulate.region import Agent, Region
from penstock.policy.policy import Queueing

PENSTOCK = "penstock"
EARLY = "penstock, binding early"
"""Penstock with unlimited engine queues: requests wait in engines and not in agents."""

LOCAL_LEAST_REQUEST = "least request, own counts"
GLOBAL_LEAST_REQUEST = "least request, shared counts"
TWO_CHOICES = "two choices, own counts"
SHARED_TWO_CHOICES = "two choices, shared counts"
BOUND = "clairvoyant, "


class _Baseline(NamedTuple):
    balancer: BalancerFactory
    shares_counts: bool = False


BASELINES = {
    "round robin": _Baseline(RoundRobin),
    "random": _Baseline(RandomChoice),
    LOCAL_LEAST_REQUEST: _Baseline(LeastRequest),
    GLOBAL_LEAST_REQUEST: _Baseline(LeastRequest, True),
    TWO_CHOICES: _Baseline(PowerOfTwo),
    SHARED_TWO_CHOICES: _Baseline(PowerOfTwo, True),
    "Envoy weighted least request": _Baseline(EnvoyWeightedLeastRequest),
    "Prequal": _Baseline(Prequal),
    "LMetric": _Baseline(LMetric),
    "llm-d sticky": _Baseline(LlmdSticky),
    "llm-d weighted": _Baseline(LlmdWeighted),
    "SkyWalker": _Baseline(SkyWalker),
}

BOUNDS = tuple(BOUND + order for order in ORDERS)


def run(
    name: str,
    fleet: FleetFactory[Request],
    requests: Sequence[Request],
    *,
    agents: int,
    seed: int,
    view_age_s: float | None = None,
    queueing: Queueing | None = None,
) -> Region[Request]:
    """Run requests through agents of one contender; return the region after the last response.

    Args:
        name: PENSTOCK, EARLY, a key of BASELINES, or an element of BOUNDS.
        seed: seed of the random numbers; equal seeds give equal runs.
        view_age_s: age (s) of the shared view; None for the product's exchange of load.
        queueing: queue order of Penstock's agents; None for the default of models.
    """
    region: Region[Request] = Region(fleet, agents, seed, view_age_s)
    region.run(requests, _agents(name, region, queueing))
    return region


def _agents(name: str, region: Region[Request], queueing: Queueing | None) -> list[Agent[Request]]:
    count = range(region.agents)
    if name in BASELINES:
        baseline = BASELINES[name]
        return [
            BaselineAgent(region, number, baseline.balancer, shares_counts=baseline.shares_counts) for number in count
        ]
    if name in BOUNDS:
        return [CentralQueue(region, ORDERS[name.removeprefix(BOUND)])] * region.agents
    engine_queue = UNBOUNDED if name == EARLY else None
    return [PenstockAgent(region, number, queueing=queueing, engine_queue=engine_queue) for number in count]
