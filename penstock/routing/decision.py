"""The region decision for one request: residency mask, then region. The router, `explain` and the verifier call it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from penstock.planning.plan import NONE_CLOSED, RegionPlan
from penstock.planning.spillover_limits import bounds
from penstock.policy.entry_map import order_by_entry_map
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, mask
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import (
    NOTHING_TRIED,
    RegionChoice,
    RegionOption,
    RegionView,
    draw,
    region_options,
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
        return Refusal(
            Reason.MISDIRECTED,
            f"residency forbids {origin}; use a permitted region",
            verdict.rejected,
            try_regions=order_by_entry_map(
                policy, facts.location, policy.nearest_first(origin, verdict.permitted.regions)
            ),
        )
    return verdict


def decide(
    policy: Policy,
    plan: RegionPlan | None,
    origin: str,
    model: str,
    residency: Mask,
    views: Mapping[str, RegionView],
    rng: Random,
    *,
    tried: Mapping[str, Reason] = NOTHING_TRIED,
    overflow: bool = False,
) -> Decision | Refusal:
    """Selects the region of a request that arrived at `origin`; called again after a region refuses it.

    The arguments are those of `region_options`; `plan` is the origin's whole plan, and `residency` is the result of
    `authorize_at_origin`.
    """
    options = region_options(
        policy,
        origin,
        residency.permitted,
        plan.lookup(model, residency.permitted.name) if plan is not None else None,
        views,
        tried=tried,
        overflow=overflow,
        ramp=plan.ramp if plan is not None else 1.0,
        closed=plan.closed_for(model) if plan is not None else NONE_CLOSED,
        limited=bounds(policy, origin, model).closed,
    )
    if isinstance(options, Refusal):
        return options
    return within_mask(Decision(residency, draw(options, rng), options))


def within_mask(decision: Decision) -> Decision | Refusal:
    """The last check of every decision: refuses a region outside the residency class, however it was chosen."""
    region, permitted = decision.choice.region, decision.mask.permitted
    if region in permitted.regions:
        return decision
    return Refusal(Reason.RESIDENCY_DENIED, f"{region} was chosen, and is not in residency class {permitted.name}")
