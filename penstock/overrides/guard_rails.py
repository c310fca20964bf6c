"""Guard rails: an override may not empty a residency class or a DNS name, or withdraw too much capacity, unless its
author forces it.

An override is judged together with every other override in force at the same time and with the policy's maintenance
windows: when it begins, at the beginning of each window during it, and when another drain of its region ends, which did
what it does until then. The caller must write the override only if no
other override was written since, so that two overrides, each acceptable alone, cannot exceed the limits together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.dns.permitted_regions import permitted_regions
from penstock.overrides.maintenance import changes, windows
from penstock.overrides.override_effects import Constraints, Interventions
from penstock.overrides.overrides import Override, OverrideKind
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, ResidencyClass, mask
from penstock.verification.situations import situations

MAX_TENANTS = 20
"""Maximum number of tenants named per residency class."""

MAX_REGIONS = 5
"""Maximum number of regions without capacity named per residency class."""

MAX_ENDS = 16
"""Maximum number of ends of other overrides of the region at which an override is judged: the last ones, after which
fewest others do what it does. 100 different ends in a fleet of 100 regions would take seconds."""

EPSILON = 1e-9

REPORTED_S = 15.0
"""Time (s) after which the reports of all agents lack the slots of an endpoint that was drained."""


class EmptiedClass(msgspec.Struct, frozen=True):
    """A residency class that would have no region left for a model."""

    residency: str
    model: str
    tenants: tuple[str, ...]
    """Tenants with requests of this class, at most MAX_TENANTS."""
    without_capacity: tuple[str, ...] = ()
    """Regions of the class without capacity for the model (failed, unknown, or without endpoints), at most
    MAX_REGIONS."""


class Objection(msgspec.Struct, frozen=True):
    """The reason to reject an override."""

    detail: str
    """The reason as text, for operators."""
    classes: tuple[EmptiedClass, ...]
    withdrawn: Mapping[str, float]
    """Share (0-1) of the fleet's capacity that overrides would withdraw, for each model that exceeds the limit."""
    names: tuple[str, ...] = ()
    """DNS names that would have no region with capacity left: none resolves to a drained region, not even as the last
    resort."""


def tenants_by_class(policy: Policy) -> dict[ResidencyClass, tuple[str, ...]]:
    """Returns every residency class that requests can have under a policy, with the tenants of those requests."""
    found: dict[ResidencyClass, set[str]] = {}
    for situation in situations(policy):
        masked = mask(policy, situation.facts)
        if isinstance(masked, Mask):
            found.setdefault(masked.permitted, set()).update(situation.tenants)
    return {permitted: tuple(sorted(tenants)) for permitted, tenants in found.items()}


def objection(
    policy: Policy,
    overrides: Iterable[Override],
    wanted: Override,
    capacity: Mapping[tuple[str, str], float],
    now: float,
) -> Objection | None:
    """Returns the reason to reject an override; None if it is within the guard rails.

    Args:
        overrides: the overrides already set.
        capacity: available slots by (region, model); if empty (no reports), every region counts as having one slot for
            every model.
        now: Unix time, in seconds.
    """
    if wanted.kind is OverrideKind.DRAIN_ENDPOINT:
        return _objection_to_endpoint(policy, overrides, wanted, capacity, now)
    if wanted.kind is OverrideKind.FREEZE or wanted.region is None:
        return None
    slots = capacity or {(region, model): 1.0 for region in policy.regions for model in policy.models}
    begins_at = max(now, wanted.begins_at)
    existing = [each for override in overrides if override.id != wanted.id for each in _judged(override, begins_at)]
    classes: dict[tuple[str, str], EmptiedClass] = {}
    withdrawn: dict[str, float] = {}
    names: set[str] = set()
    ends = {each.ends_at for each in existing if each.region == wanted.region}
    ends = {at for at in ends if begins_at < at < wanted.ends_at}
    later = {*changes(policy, wanted.region, begins_at, wanted.ends_at), *sorted(ends)[-MAX_ENDS:]}
    for at in (begins_at, *sorted(later)):
        without = [override for override in (*existing, *windows(policy, at)) if override.holds(at)]
        before, after = Interventions(without, 0.0, at), Interventions([*without, wanted], 0.0, at)
        names.update(_emptied_names(policy, before, after, slots))
        for model in policy.models if wanted.model is None else (wanted.model,):
            for emptied in _emptied(policy, before, after, wanted, model, slots):
                classes[emptied.residency, model] = emptied
            share = _withdrawn(policy, after, model, slots)
            if (
                share > policy.guard_rails.max_withdrawn_share
                and share > _withdrawn(policy, before, model, slots) + EPSILON
            ):
                withdrawn[model] = max(share, withdrawn.get(model, 0.0))
    if not classes and not withdrawn and not names:
        return None
    found = tuple(classes[key] for key in sorted(classes))
    against = Objection("", found, withdrawn, tuple(sorted(names)))
    return msgspec.structs.replace(against, detail=_describe(policy, wanted, against))


def _objection_to_endpoint(
    policy: Policy,
    overrides: Iterable[Override],
    wanted: Override,
    capacity: Mapping[tuple[str, str], float],
    now: float,
) -> Objection | None:
    """Judges the drain of the last endpoint of a model as a drain of the region for the model."""
    existing = tuple(overrides)
    for model in wanted.last_of:
        if model not in policy.models:
            continue
        of_region = _of_region(wanted, model)
        against = objection(policy, existing, of_region, capacity, now)
        if against is not None:
            detail = f"{wanted.endpoint} is the last endpoint of {wanted.region} that serves {model}: {against.detail}"
            return msgspec.structs.replace(against, detail=detail)
    return None


def _judged(override: Override, now: float) -> Iterable[Override]:
    """Yields an override as it is judged: the drain of a last endpoint as that of its region, until it is reported."""
    yield override
    if now < override.begins_at + REPORTED_S:
        yield from (_of_region(override, model) for model in override.last_of)


def _of_region(of_endpoint: Override, model: str) -> Override:
    return msgspec.structs.replace(
        of_endpoint, kind=OverrideKind.DRAIN, endpoint=None, model=model, last_resort=False, last_of=()
    )


def _emptied(
    policy: Policy,
    before: Interventions,
    after: Interventions,
    wanted: Override,
    model: str,
    slots: Mapping[tuple[str, str], float],
) -> Iterable[EmptiedClass]:
    """Yields classes that lose their last open region, or their last resort, at any origin."""
    having = {region for (region, of), amount in slots.items() if of == model and amount > 0.0}
    named = {override.origin for override in before.overrides}
    origins = {wanted.origin} if wanted.origin is not None else {None, *named}
    for residency, tenants in tenants_by_class(policy).items():
        serving = residency.regions & having
        if wanted.region not in serving:
            continue
        for origin in origins:
            if origin is not None and origin not in residency.regions:
                continue
            then, now = before.of(origin, model), after.of(origin, model)
            emptied = serving - then.closed and not serving - now.closed
            if emptied or (serving - _shut(then) and not serving - _shut(now)):
                without_capacity = sorted(residency.regions - having)
                yield EmptiedClass(residency.name, model, tenants[:MAX_TENANTS], tuple(without_capacity[:MAX_REGIONS]))
                break


def _emptied_names(
    policy: Policy, before: Interventions, after: Interventions, slots: Mapping[tuple[str, str], float]
) -> Iterable[str]:
    """Yields DNS names whose last region with capacity is closed to the clients who enter there."""
    for name in (policy.dns_names or {}).values():
        models = name.models or tuple(policy.models)
        serving = [
            (region, model)
            for region in permitted_regions(policy, name)
            for model in models
            if slots.get((region, model), 0.0) > 0.0
        ]
        was_open = any(region not in before.of(region, model).closed for region, model in serving)
        if was_open and all(region in after.of(region, model).closed for region, model in serving):
            yield name.name


def _shut(constraints: Constraints) -> frozenset[str]:
    """Returns the regions that do not serve even as a last resort."""
    return constraints.closed - constraints.last_resort


def _withdrawn(
    policy: Policy, interventions: Interventions, model: str, slots: Mapping[tuple[str, str], float]
) -> float:
    """Returns the share (0-1) of a model's capacity that is withdrawn: the mean over all origins, so that a region
    drained for one origin after another finally counts as drained."""
    having = {region: amount for (region, of), amount in slots.items() if of == model}
    total = sum(having.values())
    if not total:
        return 0.0

    def of(origin: str | None) -> float:
        weights = interventions.of(origin, model).weights
        return sum(amount * (1.0 - weights.get(region, 1.0)) for region, amount in having.items()) / total

    named = {override.origin for override in interventions.overrides if override.origin in policy.regions}
    others = len(policy.regions) - len(named)
    return (sum(map(of, sorted(filter(None, named)))) + others * of(None)) / len(policy.regions)


def _describe(policy: Policy, wanted: Override, against: Objection) -> str:
    classes = against.classes
    what = f"{wanted.kind.value.replace('_', ' ')} of {wanted.region}"
    parts = [
        f"would leave residency class {emptied.residency} no region for {emptied.model}"
        f" (tenants {', '.join(emptied.tenants)}{_without_capacity(emptied)})"
        for emptied in classes[:3]
    ]
    if len(classes) > 3:
        parts.append(f"and {len(classes) - 3} more classes")
    if against.names:
        parts.append(f"would leave no region to {', '.join(against.names[:3])} in the DNS")
    if len(against.names) > 3:
        parts.append(f"and to {len(against.names) - 3} more names")
    limit = policy.guard_rails.max_withdrawn_share
    parts += [
        f"would withdraw {share:.0%} of the fleet's capacity for {model}, more than {limit:.0%}"
        for model, share in sorted(against.withdrawn.items())[:3]
    ]
    return f"{what} {'; '.join(parts)}"


def _without_capacity(emptied: EmptiedClass) -> str:
    if not emptied.without_capacity:
        return ""
    return f"; no capacity for it in {', '.join(emptied.without_capacity)}"
