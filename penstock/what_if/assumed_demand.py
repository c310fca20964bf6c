"""Generates a demand and a fleet to evaluate policies with when no recorded ones exist."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from penstock.policy.geography import COUNTRIES
from penstock.policy.policy import Policy
from penstock.what_if.demand_outcomes import Capacity, DemandGroup

SLOTS_PER_BUSY_SLOT = 2.0
"""Slots of a generated fleet per busy slot of the whole demand; leaves capacity for the loss of a region."""

UNKNOWN_SHARE = 0.02
"""Share (0-1) of generated demand whose client location is unknown."""

ABROAD_SHARE = 0.1
"""Share (0-1) of generated demand from countries that residency rules name and that have no region."""


def generated_demand(policy: Policy, requests_per_s: float) -> list[DemandGroup]:
    """Generate equal demand of every tenant for every model.

    Most clients are in the country of the region that receives their requests. Clients in countries that have no region
    use the entry region that steering recommends. The location of a few clients is unknown.

    Args:
        policy: the policy whose tenants, models and regions are used.
        requests_per_s: the total rate, in requests per second.
    """
    homes = [(name, region.country) for name, region in sorted(policy.regions.items())]
    named = {country for rule in policy.residency for country in rule.client_countries}
    abroad = sorted(named - {country for _, country in homes})
    at_home = 1.0 - UNKNOWN_SHARE - (ABROAD_SHARE if abroad else 0.0)
    clients: list[tuple[str, str | None, float]] = [
        *((origin, country, at_home / len(homes)) for origin, country in homes),
        *(("", country, ABROAD_SHARE / len(abroad)) for country in abroad),
        *((origin, None, UNKNOWN_SHARE / len(homes)) for origin, _ in homes),
    ]
    kinds = [(tenant, model) for tenant in sorted(policy.senders) for model in sorted(policy.models)]
    rate_per_s = requests_per_s / len(kinds)
    return [
        DemandGroup(origin, tenant, country, model, rate_per_s * share)
        for tenant, model in kinds
        for origin, country, share in clients
    ]


def max_generated_groups(policy: Policy) -> int:
    """Upper bound of the number of groups of `generated_demand`, to check before generating it."""
    return len(policy.senders) * len(policy.models) * (2 * len(policy.regions) + len(COUNTRIES))


def sustainable_rate(policy: Policy, fleet: Sequence[Capacity]) -> float:
    """Maximum rate (requests/s) of `generated_demand` that leaves every model of the fleet headroom; 0 without a
    fleet."""
    max_per_s: dict[str, float] = {}
    for pool in fleet:
        if pool.model in policy.models:
            max_per_s[pool.model] = max_per_s.get(pool.model, 0.0) + pool.slots / pool.service_s
    return len(policy.models) * min(max_per_s.values(), default=0.0) / SLOTS_PER_BUSY_SLOT


def generated_fleet(policies: Sequence[Policy], demand: Sequence[DemandGroup]) -> list[Capacity]:
    """Generate a fleet in which every region of the policies runs every model with an equal number of slots."""
    regions = sorted({name for policy in policies for name in policy.regions})
    services = {name: model.expected_service_s for policy in policies for name, model in policy.models.items()}
    fleet = []
    for model, service_s in sorted(services.items()):
        busy = service_s * sum(group.requests_per_s for group in demand if group.model == model)
        slots = max(1, ceil(SLOTS_PER_BUSY_SLOT * busy / len(regions)))
        fleet += [Capacity(region, model, slots, service_s) for region in regions]
    return fleet
