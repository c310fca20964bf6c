"""What it would mean that a promise of residency is broken."""

from __future__ import annotations

import msgspec

from penstock.policy.policy import Policy
from penstock.policy.residency import cite
from penstock.verification.rule_reading import forbidding
from penstock.verification.situations import Situation


class Breach(msgspec.Struct, frozen=True):
    """A forbidden region that a stage let through, or a stage that does not do what the rules say."""

    stage: str
    whose: str
    """Requests that show it."""
    region: str
    lost: tuple[str, ...]
    """Regions that had failed, or had been tried."""
    detail: str
    rules: tuple[str, ...]
    """Those that forbid the region to such requests, with file and line."""


def breach(
    policy: Policy, stage: str, situation: Situation, region: str, detail: str, lost: tuple[str, ...] = ()
) -> Breach:
    """One of them, with the rules that it breaks."""
    rules = tuple(cite(rule) for rule in forbidding(policy, situation, region))
    return Breach(stage, str(situation), region, lost, detail, rules)
