"""The whole decision for one request, mask -> where -> who, as the router, `explain` and the simulator all call it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from penstock.planning.plan import NONE_CLOSED, RegionPlan
from penstock.planning.spillover_limits import bounds
from penstock.policy.entry_map import mapped_first
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, mask
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import NOTHING_TRIED, Prospect, RegionView, Where, choose_region, prospects


class Decision(msgspec.Struct, frozen=True):
    """Which regions may touch the request, and the one that serves it; the endpoint is chosen there."""

    mask: Mask
    where: Where


def admit_at_origin(policy: Policy, origin: str, model: str, facts: RequestFacts) -> Mask | Refusal:
    """May this request be handled at `origin` at all? A forbidden origin sends it to a permitted entry, unread."""
    if model not in policy.models:
        return Refusal(Reason.UNKNOWN_MODEL, f"no model named {model!r} is served here")
    verdict = mask(policy, facts)
    if isinstance(verdict, Refusal):
        return verdict
    if origin not in verdict.permitted.regions:
        return Refusal(
            Reason.MISDIRECTED,
            f"residency forbids {origin}; use a permitted region",
            verdict.rejected,
            try_regions=mapped_first(policy, facts.location, policy.nearest_first(origin, verdict.permitted.regions)),
        )
    return verdict


def decide(
    policy: Policy,
    plan: RegionPlan | None,
    origin: str,
    model: str,
    admitted: Mask,
    views: Mapping[str, RegionView],
    rng: Random,
    *,
    tried: Mapping[str, Reason] = NOTHING_TRIED,
    overflow: bool = False,
) -> Decision | Refusal:
    """Decide where an admitted request that landed on `origin` runs; called again as regions refuse it.

    Args are those of `choose_region`, with the origin's whole plan and what `admit_at_origin` answered.
    """
    class_plan = plan.lookup(model, admitted.permitted.name) if plan is not None else None
    where = choose_region(
        policy,
        origin,
        admitted.permitted,
        class_plan,
        views,
        rng,
        tried=tried,
        overflow=overflow,
        ramp=plan.ramp if plan is not None else 1.0,
        closed=plan.closed_for(model) if plan is not None else NONE_CLOSED,
        limited=bounds(policy, origin, model).closed,
    )
    if isinstance(where, Refusal):
        return where
    return within_mask(Decision(admitted, where))


def within_mask(decision: Decision) -> Decision | Refusal:
    """The last gate of every decision: whatever chose the region, one outside the mask does not leave here."""
    region, permitted = decision.where.region, decision.mask.permitted
    if region in permitted.regions:
        return decision
    return Refusal(Reason.RESIDENCY_DENIED, f"{region} was chosen, and is not in residency class {permitted.name}")


def outlook(
    policy: Policy,
    plan: RegionPlan | None,
    origin: str,
    model: str,
    admitted: Mask,
    views: Mapping[str, RegionView],
    *,
    tried: Mapping[str, Reason] = NOTHING_TRIED,
    overflow: bool = False,
) -> tuple[Prospect, ...] | Refusal:
    """Every way that `decide` may go with the same arguments, and how likely it is."""
    class_plan = plan.lookup(model, admitted.permitted.name) if plan is not None else None
    return prospects(
        policy,
        origin,
        admitted.permitted,
        class_plan,
        views,
        tried=tried,
        overflow=overflow,
        ramp=plan.ramp if plan is not None else 1.0,
        closed=plan.closed_for(model) if plan is not None else NONE_CLOSED,
        limited=bounds(policy, origin, model).closed,
    )
