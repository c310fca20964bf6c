"""Violations of data residency, by an evaluation of the rules region by region.

The evaluation is a reference for the mask and does not share its set arithmetic.
"""

from __future__ import annotations

import msgspec

from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from penstock.policy.residency import cite
from penstock.verification.situations import Situation


class Breach(msgspec.Struct, frozen=True):
    """A stage that permits a forbidden region, or a model that is reserved for others, or otherwise deviates from the
    rules."""

    stage: str
    requests: str
    """Description of the requests that are affected."""
    region: str
    """The region, or the model."""
    lost: tuple[str, ...]
    """Regions that had failed, or that the request had already tried."""
    detail: str
    rules: tuple[str, ...]
    """The rules that forbid the region to these requests, with file and line."""


def breach(
    policy: Policy, stage: str, situation: Situation, region: str, detail: str, lost: tuple[str, ...] = ()
) -> Breach:
    """Create a breach, with the rules that it violates."""
    rules = tuple(cite(rule) for rule in forbidding(policy, situation, region))
    return Breach(stage, str(situation), region, lost, detail, rules)


def forbidding(policy: Policy, situation: Situation, region: str) -> list[ResidencyRule]:
    """The rules that forbid a region to these requests; empty if the region may serve them."""
    found = []
    for rule, applies in zip(policy.residency, situation.applies, strict=True):
        excludes = region in rule.deny or (rule.allow is not None and region not in rule.allow)
        if applies is None or (applies and excludes):
            found.append(rule)
    return found


def permitted(policy: Policy, situation: Situation) -> frozenset[str]:
    """The regions that no rule forbids to these requests."""
    return frozenset(region for region in policy.regions if not forbidding(policy, situation, region))
