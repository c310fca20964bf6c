"""The demand of a live fleet by tenant and country, for evaluations: regions report it by model and residency class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.fleet.snapshot import Demand
from penstock.routing.reasons import Refusal
from penstock.what_if.demand_outcomes import DemandGroup
from penstock.what_if.entry_regions import EntryResolver

_SIZES: Final = (3, 2, 1)
"""How many of model, entry and class a report and the groups that stand for it share: as many as possible."""


def as_reported(
    generated: Sequence[DemandGroup], reported: Sequence[Demand], resolver: EntryResolver
) -> list[DemandGroup]:
    """Scale a generated demand so that it has the rates that regions report, by entry, model and residency class.

    Only the mix of tenants and countries within a traffic class is that of the generated demand. Requests that the
    policy in force refuses, or sends to another entry, are not reported, and none are assumed. Demand for models that
    the policy lacks is left out.

    Args:
        resolver: determines the entries of requests under the policy and the fleet as they are.
    """
    keys = [_key(group, resolver) for group in generated]
    weights: dict[tuple[str, ...], float] = defaultdict(float)
    for group, key in zip(generated, keys, strict=True):
        for part in _parts(key):
            weights[part] += group.requests_per_s
    factors: dict[tuple[str, ...], float] = defaultdict(float)
    for row in reported:
        for part in _parts((row.model, row.origin, row.residency)):
            if weights.get(part):
                factors[part] += row.requests_per_s / weights[part]
                break
    scaled = []
    for group, key in zip(generated, keys, strict=True):
        factor = sum(factors.get(part, 0.0) for part in _parts(key))
        scaled.append(msgspec.structs.replace(group, requests_per_s=group.requests_per_s * factor))
    return [group for group in scaled if group.requests_per_s > 0.0]


def _key(group: DemandGroup, resolver: EntryResolver) -> tuple[str, ...]:
    """Model, entry and class of a group; empty if its origin refuses its requests or sends them to another entry."""
    entered = resolver.enter(group)
    if isinstance(entered, Refusal) or group.origin not in ("", entered[0]):
        return ()
    return group.model, entered[0], entered[1].name


def _parts(key: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [key[:size] for size in _SIZES if key]
