"""What a rollout waits for: the conditions that end its phase without a regression, and why a policy is not rolled out.

`canary_analysis.judge` ends a phase by these conditions, and operators see the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.kinds.operations import RolloutRules
from penstock.rollout.policy_rollout import Phase, Rollout

MAX_NAMED = 5
"""Maximum number of agents that one text names."""


class Finding(msgspec.Struct, frozen=True):
    """A result beyond its limit."""

    text: str
    """The result and its baseline, for operators."""
    is_significant: bool
    """Whether it differs from the baseline by more than chance explains."""


class PhaseFacts(msgspec.Struct, frozen=True):
    """The part of the evidence that the conditions of a phase are computed from."""

    is_compared: bool = False
    """Whether the candidate's plan was compared in shadow."""
    silent: tuple[str, ...] = ()
    """Canary regions of which no agent reports."""
    lagging: tuple[str, ...] = ()
    """Agents of canary regions that do not run the candidate, as `region/agent`."""
    ended: int = 0
    """Requests that ended in the canary regions since the phase began."""
    receiving_since: float = 0.0
    """When the present leader began to receive reports (s)."""
    findings: tuple[Finding, ...] = ()
    """Results beyond the limits of the rules."""


class Condition(msgspec.Struct, frozen=True):
    """One condition for the end of a phase."""

    text: str
    """What has to happen, and how much of it has, for operators."""
    is_met: bool
    remaining_s: float | None = None
    """Time (s) until the condition is met; None if it does not depend on time alone."""


class WaitingPolicy(msgspec.Struct, frozen=True):
    """The policy that the source offers and that is not rolled out."""

    digest: str
    place: int | None
    """Number of rollouts that complete before its own begins, plus one: 1 begins next; None if it does not begin by
    itself."""
    why: str
    """Why it is not rolled out now, and what changes that."""
    begins_in_s: float | None = None
    """Least time (s) until its rollout begins; None if unknown."""


def conditions(rollout: Rollout, rules: RolloutRules, facts: PhaseFacts, now: float) -> tuple[Condition, ...]:
    """Returns the conditions that end the phase of a rollout in progress, apart from regressions; none once it is over.

    Args:
        rules: of the stable policy.
        now: the leader's clock, in seconds.
    """
    elapsed_s = now - rollout.since
    match rollout.phase:
        case Phase.SHADOW if rules.shadow_s > 0.0:
            compared = Condition("the plans of both policies are compared", facts.is_compared)
            return elapsed(elapsed_s, rules.shadow_s, "in shadow"), compared
        case Phase.CANARY if rollout.canary:
            return (
                _accepted(rollout, rules, facts, now),
                elapsed(elapsed_s, rules.canary_s, "of the canary"),
                _ended(rollout, rules, facts),
                *undecided(facts.findings),
            )
        case Phase.WATCH:
            return (elapsed(elapsed_s, rules.watch_s, "in all regions"),)
        case Phase.SHADOW_HELD | Phase.CANARY_HELD:
            return (Condition("an operator resumes, promotes or rolls back", False),)
    return ()


def elapsed(elapsed_s: float, needed_s: float, what: str) -> Condition:
    """Returns the condition that a phase has lasted `needed_s` (s)."""
    remaining_s = max(0.0, needed_s - elapsed_s)
    text = f"{min(elapsed_s, needed_s):.0f} of {needed_s:g} s {what}"
    return Condition(text, elapsed_s >= needed_s, remaining_s)


def _accepted(rollout: Rollout, rules: RolloutRules, facts: PhaseFacts, now: float) -> Condition:
    """Every canary region runs the candidate. Without that, the phase ends otherwise when the timeout is over."""
    if not facts.silent and not facts.lagging:
        return Condition(f"every agent of {', '.join(rollout.canary)} runs it", True, 0.0)
    names = [f"any agent of {region}" for region in facts.silent] + list(facts.lagging)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    left_s = max(rollout.since, facts.receiving_since) + rules.acknowledge_timeout_s - now
    text = f"{', '.join(names[:MAX_NAMED])}{more} accepts it, within {max(0.0, left_s):.0f} s"
    return Condition(text, False)


def _ended(rollout: Rollout, rules: RolloutRules, facts: PhaseFacts) -> Condition:
    text = f"{facts.ended} of {rules.min_requests} requests ended in {', '.join(rollout.canary)}"
    return Condition(text, facts.ended >= rules.min_requests)


def undecided(findings: Iterable[Finding]) -> list[Condition]:
    """Returns the conditions that further requests decide whether results beyond their limits are due to chance."""
    return [
        Condition(f"{finding.text}: further requests show whether that is chance", False)
        for finding in findings
        if not finding.is_significant
    ]


class VersionOutlook(msgspec.Struct, frozen=True):
    """What the rollout of a version waits for."""

    rollout: str
    """The name that clients request, and the new version."""
    text: str
    """Its phase, and the conditions that are not met; why it was rolled back."""


class RolloutOutlook(msgspec.Struct, frozen=True):
    """What the rollout in progress waits for, and the policy that waits for its own rollout."""

    conditions: tuple[Condition, ...] = ()
    """The conditions that end the phase, apart from regressions; empty if no rollout is in progress."""
    ends_in_s: float | None = None
    """Least time (s) until the phase ends; None if it does not depend on time alone."""
    waiting: WaitingPolicy | None = None
    """The policy that the source offers and that is not rolled out; null if there is none."""
    versions: tuple[VersionOutlook, ...] = ()
    """The rollouts of versions that are not done."""


def outlook(
    conditions: tuple[Condition, ...], rollout: Rollout, offered: str | None, withheld: tuple[str, ...] = ()
) -> RolloutOutlook:
    """Returns the outlook of a rollout.

    Args:
        conditions: of its phase.
        offered: digest of the policy that the source offers; None if the source could not be read.
        withheld: why the offered policy is not rolled out although its turn has come; empty if it is.
    """
    unmet = [condition.remaining_s for condition in conditions if not condition.is_met]
    times = [remaining_s for remaining_s in unmet if remaining_s is not None]
    ends_in_s = max(times) if times and len(times) == len(unmet) else None
    waiting = waiting_policy(rollout, offered, ends_in_s) if offered is not None else None
    if waiting is None and withheld and offered is not None:
        waiting = WaitingPolicy(offered, None, "; ".join(withheld[:MAX_NAMED]))
    return RolloutOutlook(conditions, ends_in_s, waiting)


def waiting_policy(rollout: Rollout, digest: str, ends_in_s: float | None) -> WaitingPolicy | None:
    """Returns why the source's policy is not rolled out; None if its rollout runs, begins now, or is done.

    Args:
        digest: of the policy that the source offers.
        ends_in_s: least time (s) until the rollout in progress completes; None if unknown.
    """
    if digest in (rollout.candidate, rollout.stable) and (not rollout.is_over or digest == rollout.stable):
        return None
    if digest == rollout.ignored:
        why = "an operator put another policy in force; the next revision of the source replaces that one"
        return WaitingPolicy(digest, None, why)
    if digest in rollout.dismissed:
        why = "it was rolled back or regressed, and does not start again by itself; `penstock policy apply` starts it"
        return WaitingPolicy(digest, None, why)
    if rollout.phase is Phase.WATCH:
        why = f"rollout {rollout.number} of {rollout.candidate[:12]} is watched in all regions, which completes first"
        return WaitingPolicy(digest, 1, why, ends_in_s)
    return None
