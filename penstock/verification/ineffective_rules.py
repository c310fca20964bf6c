"""Finds parts of a policy that have no effect, which usually indicates a mistake."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass, cite
from penstock.verification.situations import Situation


def warnings(policy: Policy, found: list[Situation], classes: list[ResidencyClass]) -> Iterator[str]:
    """Warnings about rules that match no request or forbid no region, and about accepted losses without a class."""
    for at, rule in enumerate(policy.residency):
        if not any(one.applies[at] for one in found):
            yield f"residency rule {cite(rule)} matches no tenant's requests"
        elif not rule.deny and (rule.allow is None or rule.allow >= policy.regions.keys()):
            yield f"residency rule {cite(rule)} keeps requests from no region"
    existing = {one.regions for one in classes}
    for accepted in policy.accepted_losses:
        if accepted.regions not in existing:
            yield f"accepted loss {accepted.name} is of no residency class: none permits exactly those regions"
