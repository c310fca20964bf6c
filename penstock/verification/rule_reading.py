"""The rules read region by region, as a lawyer would: the yardstick of the mask, and none of its set arithmetic."""

from __future__ import annotations

from penstock.policy.policy import Policy, ResidencyRule
from penstock.verification.situations import Situation


def forbidding(policy: Policy, situation: Situation, region: str) -> list[ResidencyRule]:
    """The rules that keep a region from such requests; none where it may serve them."""
    found = []
    for rule, answer in zip(policy.residency, situation.applies, strict=True):
        unseen = answer is None
        kept_out = region in rule.deny or (rule.allow is not None and region not in rule.allow)
        if unseen or (answer and kept_out):
            found.append(rule)
    return found


def permitted(policy: Policy, situation: Situation) -> frozenset[str]:
    """Every region that no rule forbids."""
    return frozenset(region for region in policy.regions if not forbidding(policy, situation, region))
