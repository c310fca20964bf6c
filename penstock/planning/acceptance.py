"""May what was published come into force here? Bad input is refused with a reason and changes nothing."""

from __future__ import annotations

from math import isfinite

from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy

SHARE_SUM_SLACK = 0.01
"""How far the shares of a class may be from 1: planners drop crumbs, and shares are drawn in proportion anyway."""


def refuse_policy(policy: Policy, named: str, region: str) -> str | None:
    """Why an agent of `region` refuses the policy that was published as digest `named`; None takes it."""
    digest = policy.digest()
    if digest != named:
        return f"policy {named[:12]} has the content of {digest[:12]}"
    if region not in policy.regions:
        return f"policy {named[:12]} does not know region {region}"
    return None


def refuse_plan(plan: RegionPlan, policy: Policy, region: str, in_force: RegionPlan | None) -> str | None:
    """Why an agent of `region` refuses a plan made under `policy`; None takes it.

    Args:
        in_force: the plan that it would replace.
    """
    if plan.region != region:
        return f"{_name(plan)} is for region {plan.region}"
    if not plan.supersedes(in_force):
        assert in_force is not None
        return f"{_name(plan)} does not supersede {_name(in_force)}"
    if not 0.0 <= plan.ramp <= 1.0:
        return f"{_name(plan)}: the ramp is not between 0 and 1"
    for entry in plan.classes:
        where = f"{_name(plan)}, class {entry.model}/{entry.residency}"
        servers = [arc.server for arc in entry.arcs]
        detoured = [arc for way in entry.detours for arc in way.arcs]
        unknown = sorted({*servers, *entry.fallbacks, *(arc.server for arc in detoured)} - policy.regions.keys())
        if unknown:
            return f"{where}: no region {', '.join(unknown)} in policy {plan.policy_digest[:12]}"
        if len(set(servers)) < len(servers):
            return f"{where}: two arcs to one region"
        if not all(
            isfinite(arc.share) and 0.0 <= arc.share <= 1.0 + SHARE_SUM_SLACK for arc in (*entry.arcs, *detoured)
        ):
            return f"{where}: a share is not between 0 and 1"
        if entry.arcs and abs(sum(arc.share for arc in entry.arcs) - 1.0) > SHARE_SUM_SLACK:
            return f"{where}: shares do not sum to 1"
    return None


def _name(plan: RegionPlan) -> str:
    return f"plan {plan.epoch}/{plan.generation}"
