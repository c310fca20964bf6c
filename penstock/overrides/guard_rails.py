"""What an override may not do unless its author says that it is meant: empty a residency class, or too much of a fleet.

It is judged together with every other override that will hold with it and with the policy's maintenance windows, at
its beginning and at each moment at which a window begins during it. Whoever writes it sees to it that nothing else was
written since it was judged, so that two that are harmless alone do no harm together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.overrides.interventions import Interventions, Orders
from penstock.overrides.maintenance import openings, windows
from penstock.overrides.overrides import Override, OverrideKind
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, ResidencyClass, mask
from penstock.verification.situations import situations

MAX_TENANTS = 20
"""As many tenants of a class are named."""

EPSILON = 1e-9


class EmptiedClass(msgspec.Struct, frozen=True):
    """A residency class that would be left without a region for a model."""

    residency: str
    model: str
    tenants: tuple[str, ...]
    """The first few of those whose requests are of the class."""


class Objection(msgspec.Struct, frozen=True):
    """Why an override is not set as it is."""

    detail: str
    """For people."""
    classes: tuple[EmptiedClass, ...]
    withdrawn: Mapping[str, float]
    """By model, how much (0-1) of the fleet's capacity overrides would take out of use, where that is too much."""


def tenants_by_class(policy: Policy) -> dict[ResidencyClass, tuple[str, ...]]:
    """Every residency class that requests under a policy can be of, and whose requests those are."""
    found: dict[ResidencyClass, set[str]] = {}
    for one in situations(policy):
        masked = mask(policy, one.facts)
        if isinstance(masked, Mask):
            found.setdefault(masked.permitted, set()).update(one.tenants)
    return {permitted: tuple(sorted(tenants)) for permitted, tenants in found.items()}


def objection(
    policy: Policy,
    overrides: Iterable[Override],
    wanted: Override,
    capacity: Mapping[tuple[str, str], float],
    now: float,
) -> Objection | None:
    """What speaks against an override; None where nothing does.

    Args:
        overrides: those that are set already.
        capacity: slots by (region, model) of what stands now; empty where nobody has reported, and then every region
            counts as having one slot for every model.
        now: Unix time, in seconds.
    """
    if wanted.kind is OverrideKind.FREEZE or wanted.region is None:
        return None
    slots = capacity or {(region, model): 1.0 for region in policy.regions for model in policy.models}
    begins_at = max(now, wanted.begins_at)
    standing = [one for one in overrides if one.id != wanted.id]
    classes: dict[tuple[str, str], EmptiedClass] = {}
    withdrawn: dict[str, float] = {}
    for at in (begins_at, *openings(policy, begins_at, wanted.ends_at)):
        without = [one for one in (*standing, *windows(policy, at)) if one.holds(at)]
        before, after = Interventions(without, 0.0, at), Interventions([*without, wanted], 0.0, at)
        for model in policy.models if wanted.model is None else (wanted.model,):
            for one in _emptied(policy, before, after, wanted, model, slots):
                classes[one.residency, model] = one
            share = _withdrawn(policy, after, model, slots)
            if (
                share > policy.guard_rails.max_withdrawn_share
                and share > _withdrawn(policy, before, model, slots) + EPSILON
            ):
                withdrawn[model] = max(share, withdrawn.get(model, 0.0))
    if not classes and not withdrawn:
        return None
    found = tuple(classes[key] for key in sorted(classes))
    return Objection(_told(policy, wanted, found, withdrawn), found, withdrawn)


def _emptied(
    policy: Policy,
    before: Interventions,
    after: Interventions,
    wanted: Override,
    model: str,
    slots: Mapping[tuple[str, str], float],
) -> Iterable[EmptiedClass]:
    """Classes that have an open region before and none after, or no last resort any more, at any origin."""
    having = {region for (region, of), amount in slots.items() if of == model and amount > 0.0}
    origins = {wanted.origin} if wanted.origin is not None else {None, *(one.origin for one in before.overrides)}
    for residency, tenants in tenants_by_class(policy).items():
        standing = residency.regions & having
        if wanted.region not in standing:
            continue
        for origin in origins:
            if origin is not None and origin not in residency.regions:
                continue
            then, now = before.of(origin, model), after.of(origin, model)
            emptied = standing - then.closed and not standing - now.closed
            if emptied or (standing - _shut(then) and not standing - _shut(now)):
                yield EmptiedClass(residency.name, model, tenants[:MAX_TENANTS])
                break


def _shut(orders: Orders) -> frozenset[str]:
    """Regions that do not even serve what no other can."""
    return orders.closed - orders.last_resort


def _withdrawn(
    policy: Policy, interventions: Interventions, model: str, slots: Mapping[tuple[str, str], float]
) -> float:
    """The part (0-1) of a model's capacity that is out of use: the mean over all origins, so that a region that is
    drained for one after the other counts in the end as one that is drained."""
    having = {region: amount for (region, of), amount in slots.items() if of == model}
    total = sum(having.values())
    if not total:
        return 0.0

    def of(origin: str | None) -> float:
        weights = interventions.of(origin, model).weights
        return sum(amount * (1.0 - weights.get(region, 1.0)) for region, amount in having.items()) / total

    named = {one.origin for one in interventions.overrides if one.origin in policy.regions}
    others = len(policy.regions) - len(named)
    return (sum(map(of, sorted(filter(None, named)))) + others * of(None)) / len(policy.regions)


def _told(policy: Policy, wanted: Override, classes: tuple[EmptiedClass, ...], withdrawn: Mapping[str, float]) -> str:
    what = f"{wanted.kind.value.replace('_', ' ')} of {wanted.region}"
    parts = [
        f"would leave residency class {one.residency} no region for {one.model} (tenants {', '.join(one.tenants)})"
        for one in classes[:3]
    ]
    if len(classes) > 3:
        parts.append(f"and {len(classes) - 3} more classes")
    most = policy.guard_rails.max_withdrawn_share
    parts += [
        f"would take {share:.0%} of the fleet's capacity for {model} out of use, more than {most:.0%}"
        for model, share in sorted(withdrawn.items())[:3]
    ]
    return f"{what} {'; '.join(parts)}"
