"""The hourly cost of a fleet: the GPUs of its endpoints, and the egress between regions under the plan in force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.fleet.counts.message_bytes import MessageBytes
from penstock.fleet.snapshot import Demand, FadedPool
from penstock.planning.egress_cost import egress_cost
from penstock.planning.plan import RegionPlan
from penstock.policy.gpu_price import gpu_price
from penstock.policy.policy import SECONDS_PER_HOUR, Policy


def gpu_hourly_cost(
    policy: Policy, pools: Mapping[tuple[str, str], FadedPool], now: float
) -> dict[tuple[str, str], float]:
    """The price of the GPUs of each (region, model) at `now` (Unix time, s), in the currency of the bundle per hour.

    The price of an endpoint does not depend on its load or readiness. The price of an endpoint that several models
    share is divided equally among them.
    """
    found = {}
    for (region, model), pool in pools.items():
        if region not in policy.regions or model not in policy.models:
            continue
        endpoints = pool.report.endpoints - sum(
            group.endpoints * (1.0 - 1.0 / len(group.models)) for group in pool.groups
        )
        gpus = max(0.0, endpoints) * policy.models[model].scaling.gpus_per_endpoint
        found[region, model] = gpus * gpu_price(policy, region, model, now)
    return found


def egress_hourly_cost(
    policy: Policy,
    demands: Iterable[Demand],
    plans: Mapping[str, RegionPlan],
    measured: Mapping[str, MessageBytes],
) -> dict[tuple[str, str], float]:
    """The price of traffic between each (origin, server), in the currency of the bundle per hour.

    Args:
        demands: the measured demand.
        plans: the slices in force, by origin.
        measured: measured sizes of messages by model, in place of those of the policy.
    """
    per_s = {(row.origin, row.model, row.residency): row.requests_per_s for row in demands}
    found: dict[tuple[str, str], float] = {}
    for origin, plan in plans.items():
        for entry in plan.classes:
            rate = per_s.get((origin, entry.model, entry.residency), 0.0)
            if not rate or origin not in policy.regions or entry.model not in policy.models:
                continue
            for arc in entry.arcs:
                if arc.server != origin and arc.server in policy.regions:
                    prices = (policy.regions[name].egress_cost_per_gb for name in (origin, arc.server))
                    sizes = measured.get(entry.model) or policy.models[entry.model]
                    cost = arc.share * rate * egress_cost(sizes, *prices) * SECONDS_PER_HOUR
                    found[origin, arc.server] = found.get((origin, arc.server), 0.0) + cost
    return found
