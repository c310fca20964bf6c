"""The region decision for one request: residency mask, then region. The router, `explain` and the verifier call it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from penstock.planning.plan import RegionPlan
from penstock.planning.spillover_limits import bounds
from penstock.policy.entry_map import mapped, order_by_entry_map
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, mask
from penstock.pools.burst import Otherwise
from penstock.routing.batch_placement import batch_options
from penstock.routing.burst_regions import burst_region
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import (
    NO_CLOSURES,
    Closures,
    RegionChoice,
    RegionOption,
    RegionRequest,
    RegionView,
    draw,
    region_options,
    usable_regions,
)


class Decision(msgspec.Struct, frozen=True):
    """The permitted regions of a request and its serving region, whose agent selects the endpoint."""

    mask: Mask
    choice: RegionChoice
    options: tuple[RegionOption, ...]
    """Every possible result of the draw, including `choice`."""


def authorize_at_origin(policy: Policy, origin: str, model: str, facts: RequestFacts) -> Mask | Refusal:
    """The residency mask of a request at `origin`; for a forbidden origin, a refusal with the permitted entries."""
    if model not in policy.models:
        return Refusal(Reason.MODEL_NOT_FOUND, f"no model named {model!r} is served here")
    return mask_at_origin(policy, origin, facts)


def mask_at_origin(policy: Policy, origin: str, facts: RequestFacts) -> Mask | Refusal:
    """The residency mask of a request at `origin`, for any model, or a refusal (see `authorize_at_origin`)."""
    verdict = mask(policy, facts)
    if isinstance(verdict, Refusal):
        return verdict
    if origin not in verdict.permitted.regions:
        nearest = policy.nearest_first(origin, verdict.permitted.regions)
        regions = order_by_entry_map(policy, facts.location, nearest)
        entries = [policy.regions[name].entry for name in regions]
        urls = tuple(entry.url for entry in entries if isinstance(entry, RegionEntry) and entry.url)
        return Refusal(
            Reason.MISDIRECTED,
            f"residency forbids {origin}; use {urls[0] if urls else 'a permitted region'}",
            verdict.rejected,
            try_regions=regions,
            try_urls=urls,
        )
    return verdict


def same_residency(policy: Policy, other: Policy) -> bool:
    """Whether two policies decide alike about the residency of all requests, and send clients to the same entries."""
    if policy.residency != other.residency or policy.regions.keys() != other.regions.keys():
        return False
    if policy.entry_maps != other.entry_maps:
        return False
    both = policy.tenants.keys() & other.tenants.keys()
    return all(policy.tenants[name].data_class == other.tenants[name].data_class for name in both)


def may_be_by_change(policy: Policy, before: Policy, origin: str, facts: RequestFacts) -> bool:
    """Whether a change may be the cause of the refusal of a request at `origin` for its residency.

    It may if the policy before permitted the request, or did not send its client to this region. Other requests are the
    tenant's own, which can send any number of them.

    Args:
        facts: of the request, by `policy`, which is in force.
    """
    location = facts.location
    if mapped(policy, location)[:1] == (origin,) != mapped(before, location)[:1]:
        return True
    tenant = before.tenants.get(facts.tenant)
    if tenant is not None:
        facts = msgspec.structs.replace(facts, data_class=tenant.data_class)
    return isinstance(mask_at_origin(before, origin, facts), Mask)


def decide(
    policy: Policy,
    plan: RegionPlan | None,
    residency: Mask,
    request: RegionRequest,
    views: Mapping[str, RegionView],
    rng: Random,
) -> Decision | Refusal:
    """Selects the region of a request that arrived at an origin; called again after a region refuses it.

    Args:
        plan: the origin's whole plan; None without a plan.
        residency: the result of `authorize_at_origin`, whose class is that of `request`.
        views: state by region; a region without one counts as unknown.
    """
    closures = _closures(policy, plan, request)
    class_plan = plan.lookup(request.model, request.permitted.name) if plan is not None else None
    options = (
        region_options(policy, class_plan, request, views, closures)
        if request.batch_at is None
        else batch_options(policy, request, views, closures)
    )
    if isinstance(options, Refusal):
        return options
    return within_mask(Decision(residency, draw(options, rng, request.session), options))


def decide_burst(
    policy: Policy,
    plan: RegionPlan | None,
    residency: Mask,
    request: RegionRequest,
    views: Mapping[str, RegionView],
    otherwise: Otherwise,
) -> RegionChoice | None:
    """Selects another region's burst endpoint for a request that `decide` refused, within the mask; None for none.

    Args:
        otherwise: what becomes of the request at the origin.
    """
    closures = _closures(policy, plan, request)
    class_plan = plan.lookup(request.model, request.permitted.name) if plan is not None else None
    choice = burst_region(policy, class_plan, request, views, closures, otherwise)
    if choice is None:
        return None
    within = within_mask(Decision(residency, choice, (RegionOption(choice, 1.0),)))
    return within.choice if isinstance(within, Decision) else None


def is_servable(
    policy: Policy, plan: RegionPlan | None, request: RegionRequest, views: Mapping[str, RegionView]
) -> bool:
    """Whether a region is left for a request that other regions have failed or refused, by the rules of `decide`.

    The region may be full: whether it has room is decided when the request is sent there.
    """
    class_plan = plan.lookup(request.model, request.permitted.name) if plan is not None else None
    return bool(usable_regions(class_plan, request, views, _closures(policy, plan, request))[0])


def _closures(policy: Policy, plan: RegionPlan | None, request: RegionRequest) -> Closures:
    limited = bounds(policy, request.origin, request.model).closed
    if plan is None:
        return Closures(limited=limited) if limited else NO_CLOSURES
    return Closures(plan.ramp, plan.closed_for(request.model), limited)


def within_mask(decision: Decision) -> Decision | Refusal:
    """The last check of every decision: refuses a region outside the residency class, however it was chosen."""
    region, permitted = decision.choice.region, decision.mask.permitted
    if region in permitted.regions:
        return decision
    return Refusal(Reason.RESIDENCY_DENIED, f"{region} was chosen, and is not in residency class {permitted.name}")
