"""Checks by which an agent accepts a published policy or plan. A rejection changes nothing, and its reason is
logged."""

from __future__ import annotations

from math import isfinite

from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy

SHARE_SUM_SLACK = 0.01
"""Maximum difference between 1 and the sum of a class's shares; agents draw in proportion to the shares."""


def refuse_policy(policy: Policy, named: str, region: str) -> str | None:
    """The reason for an agent of `region` to reject the policy published under the digest `named`; None to accept."""
    digest = policy.digest()
    if digest != named:
        return f"policy {named[:12]} has the content of {digest[:12]}"
    if region not in policy.regions:
        return f"policy {named[:12]} has no region {region}"
    try:
        _ = policy.route_table
    except ValueError as error:
        return f"policy {named[:12]}: a route cannot be used: {error}"
    return None


def refuse_plan(plan: RegionPlan, policy: Policy, region: str, in_force: RegionPlan | None) -> str | None:
    """The reason to reject a plan made under `policy`, at an agent of `region`; None to accept it.

    Args:
        plan: the published plan.
        policy: the policy of the digest that the plan names.
        region: the region of the agent.
        in_force: the plan in force at the agent; None if there is none.
    """
    if plan.region != region:
        return f"{_name(plan)} is for region {plan.region}"
    if not plan.supersedes(in_force):
        assert in_force is not None
        return f"{_name(plan)} does not supersede {_name(in_force)}"
    if not 0.0 <= plan.ramp <= 1.0:
        return f"{_name(plan)}: the ramp is not between 0 and 1"
    for share in plan.version_shares:
        if not all(0.0 <= each <= 100.0 for each in (share.percent, share.shadow_percent, share.next_percent)):
            return f"{_name(plan)}: the share of {share.to} is not between 0 and 100"
    for entry in plan.classes:
        where = f"{_name(plan)}, class {entry.model}/{entry.residency}"
        servers = [arc.server for arc in entry.arcs]
        rerouted = [arc for table in entry.failover_tables for arc in table.arcs]
        unknown = sorted({*servers, *entry.fallbacks, *(arc.server for arc in rerouted)} - policy.regions.keys())
        if unknown:
            return f"{where}: no region {', '.join(unknown)} in policy {plan.policy_digest[:12]}"
        if len(set(servers)) < len(servers):
            return f"{where}: two arcs to one region"
        if not all(
            isfinite(arc.share) and 0.0 <= arc.share <= 1.0 + SHARE_SUM_SLACK for arc in (*entry.arcs, *rerouted)
        ):
            return f"{where}: a share is not between 0 and 1"
        if entry.arcs and abs(sum(arc.share for arc in entry.arcs) - 1.0) > SHARE_SUM_SLACK:
            return f"{where}: shares do not sum to 1"
    return None


def _name(plan: RegionPlan) -> str:
    return f"plan {plan.epoch}/{plan.generation}"
