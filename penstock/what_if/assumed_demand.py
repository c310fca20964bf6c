"""A demand and a fleet to try policies on, where none was recorded: every tenant from everywhere, and room for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from penstock.policy.geography import COUNTRIES
from penstock.policy.policy import Policy
from penstock.what_if.outcomes import Asked, Capacity

ROOM = 2.0
"""A made-up fleet has so many times the slots that the whole demand keeps busy: the loss of a region can be borne."""

UNKNOWN_SHARE = 0.02
"""Part (0-1) of made-up demand whose clients nobody can locate."""

ABROAD_SHARE = 0.1
"""Part of it that comes from countries which residency rules name and where no region stands."""


def generated_demand(policy: Policy, requests_per_s: float) -> list[Asked]:
    """Every tenant asks for every model, all of them equally often.

    Most clients are in the country of the region that they come to; some are in countries that rules name and come by
    the entry that steering advises; a few come from unknown places.

    Args:
        requests_per_s: of all together.
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
    kinds = [(tenant, model) for tenant in sorted(policy.tenants) for model in sorted(policy.models)]
    each = requests_per_s / len(kinds)
    return [
        Asked(origin, tenant, country, model, each * share)
        for tenant, model in kinds
        for origin, country, share in clients
    ]


def generated_kinds(policy: Policy) -> int:
    """At most so many kinds of request are in a demand that is made up: to be asked before it is made."""
    return len(policy.tenants) * len(policy.models) * (2 * len(policy.regions) + len(COUNTRIES))


def bearable_rate(policy: Policy, fleet: Sequence[Capacity]) -> float:
    """The `generated_demand` (requests per second) that leaves a fleet its `ROOM` with every model; 0 for no fleet."""
    able: dict[str, float] = {}
    for pool in fleet:
        if pool.model in policy.models:
            able[pool.model] = able.get(pool.model, 0.0) + pool.slots / pool.service_s
    return len(policy.models) * min(able.values(), default=0.0) / ROOM


def generated_fleet(policies: Sequence[Policy], demand: Sequence[Asked]) -> list[Capacity]:
    """Every region of any of the policies runs every model, and each has an equal part of the slots."""
    regions = sorted({name for policy in policies for name in policy.regions})
    services = {name: model.expected_service_s for policy in policies for name, model in policy.models.items()}
    fleet = []
    for model, service_s in sorted(services.items()):
        busy = service_s * sum(one.requests_per_s for one in demand if one.model == model)
        slots = max(1, ceil(ROOM * busy / len(regions)))
        fleet += [Capacity(region, model, slots, service_s) for region in regions]
    return fleet
