"""Evaluates residency rules region by region: a reference for the mask that does not share its set arithmetic."""

from __future__ import annotations

from penstock.policy.policy import Policy, ResidencyRule
from penstock.verification.situations import Situation


def forbidding(policy: Policy, situation: Situation, region: str) -> list[ResidencyRule]:
    """The rules that forbid a region to these requests; empty if the region may serve them."""
    found = []
    for rule, answer in zip(policy.residency, situation.applies, strict=True):
        unseen = answer is None
        kept_out = region in rule.deny or (rule.allow is not None and region not in rule.allow)
        if unseen or (answer and kept_out):
            found.append(rule)
    return found


def permitted(policy: Policy, situation: Situation) -> frozenset[str]:
    """The regions that no rule forbids to these requests."""
    return frozenset(region for region in policy.regions if not forbidding(policy, situation, region))
