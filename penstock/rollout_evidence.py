"""Does a candidate do well? What agents say of it, against what was before and what the others see at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock.answers import Answers
from penstock.policy import RolloutRules
from penstock.rollout import IN_CANARY, Event, Mark, Phase, Rollout, follow
from penstock.snapshot import Snapshot, freshness

MOST_MARKS = 5_000
"""Agents whose counters are marked: a rollout has to fit into one value of the store."""

MOST_NAMED = 5
"""Agents that a sentence names."""


class AgentWord(msgspec.Struct, frozen=True):
    """What one agent said last."""

    region: str
    epoch: int
    policy_digest: str
    """The policy in force there."""
    refused_digest: str
    refused: str
    answers: Answers


class Evidence(msgspec.Struct, frozen=True):
    """Everything that a candidate is judged by at some moment."""

    agents: Mapping[str, AgentWord]
    """By `region/agent`; those that are heard."""
    moved_share: float | None = None
    """How much (0-1) of all demand the candidate's plan serves elsewhere; None where nobody looked."""
    heard_since: float = 0.0
    """When whoever leads now began to hear agents (s): silence before says nothing."""


def words(snapshot: Snapshot, now: float) -> dict[str, AgentWord]:
    """What every agent says that is heard."""
    return {
        f"{region}/{name}": AgentWord(
            region,
            held.report.epoch,
            held.report.policy_digest,
            held.report.refused_digest,
            held.report.refused_plan,
            held.report.answers,
        )
        for (region, name), held in sorted(snapshot.agents.items())
        if freshness(now - held.received_at) > 0.0
    }


def observe(rollout: Rollout, rules: RolloutRules, evidence: Evidence, now: float) -> Rollout:
    """The rollout after all that the evidence says, however many phases that is; itself where it says nothing.

    Args:
        rules: of the stable policy: a candidate does not loosen its own gate.
        now: the leader's clock, in seconds.
    """
    rollout = _marked(rollout, evidence)
    while not rollout.is_over and (verdict := judge(rollout, rules, evidence, now)) is not None:
        event, why = verdict
        after = follow(rollout, event, now, why=why)
        if rollout.phase is Phase.SHADOW:
            after = msgspec.structs.replace(after, moved_share=evidence.moved_share)
        rollout = _marked(after, evidence)
    return rollout


def judge(rollout: Rollout, rules: RolloutRules, evidence: Evidence, now: float) -> tuple[Event, str] | None:
    """What happens to a rollout that is under way, and why; None: nothing yet."""
    elapsed_s = now - rollout.since
    if rollout.phase is Phase.SHADOW:
        return _shadowed(rules, evidence.moved_share, elapsed_s)
    if rollout.phase is Phase.CANARY and not rollout.canary:
        return Event.PROVEN, "no region is to try it first"
    if rollout.phase not in IN_CANARY and rollout.phase is not Phase.WATCH:
        return None
    bad = _refused(rollout, evidence) or _regressed(rollout, rules, evidence)
    if bad is not None:
        return bad
    if rollout.phase is Phase.CANARY:
        return _tried(rollout, rules, evidence, now)
    if rollout.phase is Phase.WATCH and elapsed_s >= rules.watch_s:
        return Event.SETTLED, f"no trouble within {rules.watch_s:g} s everywhere"
    return None


def _shadowed(rules: RolloutRules, moved: float | None, elapsed_s: float) -> tuple[Event, str] | None:
    if rules.shadow_s == 0.0:
        return Event.AGREED, "rules ask for no shadow"
    if elapsed_s < rules.shadow_s or moved is None:
        return None
    if moved > rules.most_moved_share:
        return Event.DIFFERED, f"it would move {moved:.1%} of demand, more than {rules.most_moved_share:.1%}"
    return Event.AGREED, f"it moves {moved:.1%} of demand"


def _tried(rollout: Rollout, rules: RolloutRules, evidence: Evidence, now: float) -> tuple[Event, str] | None:
    """Whether the canary regions have had enough of it, or never got it."""
    there = {name: word for name, word in evidence.agents.items() if word.region in rollout.canary}
    silent = sorted(set(rollout.canary) - {word.region for word in there.values()})
    lagging = [name for name, word in there.items() if word.policy_digest != rollout.candidate]
    if silent or lagging:
        if now - max(rollout.since, evidence.heard_since) < rules.acknowledge_within_s:
            return None
        if silent:
            return Event.ABSENT, f"no agent of {', '.join(silent)} is heard"
        return Event.UNACKNOWLEDGED, f"{_named(lagging)} did not take it within {rules.acknowledge_within_s:g} s"
    seen = _since(rollout.marks, there)
    if now - rollout.since < rules.canary_s or seen.ended < rules.least_requests:
        return None
    return Event.PROVEN, f"{seen.ended} requests in {', '.join(rollout.canary)} ended as well as before"


def _refused(rollout: Rollout, evidence: Evidence) -> tuple[Event, str] | None:
    for name, word in evidence.agents.items():
        # What an agent obeys it has not refused: then it refuses some plan made under it, or obeys it by now.
        if word.refused_digest == rollout.candidate != word.policy_digest:
            return Event.REFUSED, f"{name} refuses it: {word.refused}"
    return None


def _regressed(rollout: Rollout, rules: RolloutRules, evidence: Evidence) -> tuple[Event, str] | None:
    def obeys(word: AgentWord) -> bool:
        return rollout.digest_for(word.region) == rollout.candidate

    now = _since(rollout.marks, _those(evidence, obeys))
    enough = max(1, rules.least_requests)
    if now.ended < enough:
        return None
    usual = _sum(one for region, one in rollout.before.items() if rollout.digest_for(region) == rollout.candidate)
    against = "before"
    if usual.ended < enough:
        usual, against = _since(rollout.marks, _those(evidence, lambda word: not obeys(word))), "elsewhere"
    if usual.ended < enough:
        usual, against = Answers(), "of none known"
    if now.failed_share > usual.failed_share + rules.most_failures_added:
        return Event.REGRESSED, f"{now.failed_share:.1%} of requests fail, {usual.failed_share:.1%} {against}"
    if usual.begun and now.mean_first_byte_s > usual.mean_first_byte_s * rules.most_latency_factor:
        told = f"answers begin after {now.mean_first_byte_s:.3f} s, {usual.mean_first_byte_s:.3f} s {against}"
        return Event.REGRESSED, told
    return None


def _marked(rollout: Rollout, evidence: Evidence) -> Rollout:
    """With the counters that the phase begins with, and what the shadow saw if it is just over."""
    if rollout.is_over or rollout.marks is not None:
        return rollout
    before = rollout.before if rollout.earlier is None else _by_region(rollout.earlier, evidence)
    marks = {name: Mark(word.epoch, word.answers) for name, word in list(evidence.agents.items())[:MOST_MARKS]}
    return msgspec.structs.replace(rollout, marks=marks, earlier=None, before=before)


def _by_region(marks: Mapping[str, Mark], evidence: Evidence) -> dict[str, Answers]:
    regions = sorted({word.region for word in evidence.agents.values()})
    return {
        region: _since(marks, {name: word for name, word in evidence.agents.items() if word.region == region})
        for region in regions
    }


def _those(evidence: Evidence, which: Callable[[AgentWord], bool]) -> dict[str, AgentWord]:
    return {name: word for name, word in evidence.agents.items() if which(word)}


def _since(marks: Mapping[str, Mark] | None, agents: Mapping[str, AgentWord]) -> Answers:
    """How requests ended at these agents since the marks; one without a mark says nothing, a restarted one all."""
    total = Answers()
    for name, word in agents.items():
        mark = (marks or {}).get(name)
        if mark is not None:
            total += word.answers.since(mark.answers) if mark.epoch == word.epoch else word.answers
    return total


def _sum(some: Iterable[Answers]) -> Answers:
    total = Answers()
    for one in some:
        total += one
    return total


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
