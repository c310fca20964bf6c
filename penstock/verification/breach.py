"""A violation of data residency, with the rules that it violates."""

from __future__ import annotations

import msgspec

from penstock.policy.policy import Policy
from penstock.policy.residency import cite
from penstock.verification.rule_reading import forbidding
from penstock.verification.situations import Situation


class Breach(msgspec.Struct, frozen=True):
    """A stage that permits a forbidden region, or otherwise deviates from the rules."""

    stage: str
    requests: str
    """Description of the requests that are affected."""
    region: str
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
