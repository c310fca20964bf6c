"""The prefill that caches of other regions spare a request which would wait at its origin."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.planning.egress_cost import egress_cost
from penstock.policy.policy import Policy
from penstock.routing.prefixes.prefix_sketch import Held, spared_s

NOTHING_SPARED: Final[Mapping[str, float]] = MappingProxyType({})

MS_PER_S: Final = 1000.0


class PromptWork(NamedTuple):
    """The prefill of a request, on the reference accelerator."""

    model: str
    block_s: float
    """Prefill (s) of one block of its prompt."""
    prefill_s: float
    """Prefill (s) of the whole prompt."""


def spared_elsewhere(
    policy: Policy, origin: str, work: PromptWork, held: Mapping[str, Held], waits_s: Mapping[str, float]
) -> dict[str, float]:
    """Return the time (s) that the caches of each region spare a request, less the price of its egress as latency.

    Args:
        origin: the region at which the request arrived.
        held: what other regions hold of its prompt. Regions that may not process it are not among them.
        waits_s: expected wait (s) in each of these regions.
    """
    model = policy.models.get(work.model)
    if model is None:
        return {}
    found = {}
    for region, blocks in held.items():
        spared = spared_s(blocks, work.block_s, work.prefill_s, waits_s[region])
        if spared > 0.0:
            spared -= egress_s(policy, work.model, origin, region)
            if spared > 0.0:
                found[region] = spared
    return found


def egress_s(policy: Policy, model: str, origin: str, region: str) -> float:
    """Return the egress cost of a request of average size between two regions, as the latency (s) that it is worth."""
    prices = policy.regions[origin].egress_cost_per_gb, policy.regions[region].egress_cost_per_gb
    return egress_cost(policy.models[model], *prices) * policy.objective.latency_ms_per_cost / MS_PER_S
