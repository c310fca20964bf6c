"""The compared strategies of endpoint selection, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

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
from lab.simulate.penstock_agent import PenstockAgent
from lab.simulate.region import Agent, Region
from penstock.policy.kinds.models import Queueing

PENSTOCK = "penstock"
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


class AgentSettings(msgspec.Struct, frozen=True):
    """The agents of a region."""

    count: int
    view_age_s: float | None = None
    """Age (s) of the shared view; None for the product's exchange of load."""
    queueing: Queueing = Queueing()
    """Queue order of Penstock's agents."""


def run(
    name: str, fleet: FleetFactory[Request], requests: Sequence[Request], agents: AgentSettings, seed: int
) -> Region[Request]:
    """Run requests through agents of one contender; return the region after the last response.

    Args:
        name: PENSTOCK, a key of BASELINES, or an element of BOUNDS.
        seed: seed of the random numbers; equal seeds give equal runs.
    """
    region: Region[Request] = Region(fleet, agents.count, seed, agents.view_age_s)
    region.run(requests, _agents(name, region, agents.queueing))
    return region


def _agents(name: str, region: Region[Request], queueing: Queueing) -> list[Agent[Request]]:
    count = range(region.agents)
    if name in BASELINES:
        balancer, shares_counts = BASELINES[name]
        return [BaselineAgent(region, number, balancer, shares_counts=shares_counts) for number in count]
    if name in BOUNDS:
        return [CentralQueue(region, ORDERS[name.removeprefix(BOUND)])] * region.agents
    return [PenstockAgent(region, number, queueing) for number in count]
