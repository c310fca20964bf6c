"""Does a candidate do well? What agents say of it, against what was before and what the others see at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock.fleet.request_counts import RequestCounts
from penstock.fleet.snapshot import Snapshot, freshness
from penstock.policy.policy import RolloutRules
from penstock.rollout.objective_evidence import Kept, broken, counted, since, together
from penstock.rollout.state_machine import IN_CANARY, Event, Mark, Phase, Rollout, follow

MAX_MARKS = 5_000
"""Agents whose counters are marked: a rollout has to fit into one value of the store."""

MAX_KEPT = 3_000
"""Service objectives that are marked with them, those of all agents together: each takes about half of its agent."""

MAX_NAMED = 5
"""Agents that a sentence names."""

MAX_REFUSAL = 500
"""Characters of an agent's own words in a sentence."""


class AgentWord(msgspec.Struct, frozen=True):
    """What one agent said last."""

    region: str
    epoch: int
    policy_digest: str
    """The policy in force there."""
    refused_digest: str
    refused: str
    answers: RequestCounts
    kept: tuple[Kept, ...] = ()
    """Service objectives."""


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
            counted(held.report.objectives),
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
    bad = _refused(rollout, evidence) or _regressed(rollout, rules, evidence) or _missed(rollout, rules, evidence)
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
    if moved > rules.max_moved_share:
        return Event.DIFFERED, f"it would move {moved:.1%} of demand, more than {rules.max_moved_share:.1%}"
    return Event.AGREED, f"it moves {moved:.1%} of demand"


def _tried(rollout: Rollout, rules: RolloutRules, evidence: Evidence, now: float) -> tuple[Event, str] | None:
    """Whether the canary regions have had enough of it, or never got it."""
    there = {name: word for name, word in evidence.agents.items() if word.region in rollout.canary}
    silent = sorted(set(rollout.canary) - {word.region for word in there.values()})
    lagging = [name for name, word in there.items() if word.policy_digest != rollout.candidate]
    if silent or lagging:
        if now - max(rollout.since, evidence.heard_since) < rules.acknowledge_timeout_s:
            return None
        if silent:
            return Event.ABSENT, f"no agent of {', '.join(silent)} is heard"
        return Event.UNACKNOWLEDGED, f"{_named(lagging)} did not take it within {rules.acknowledge_timeout_s:g} s"
    seen = _since(rollout.marks, there)
    if now - rollout.since < rules.canary_s or seen.ended < rules.min_requests:
        return None
    return Event.PROVEN, f"{seen.ended} requests in {', '.join(rollout.canary)} ended as well as before"


def _refused(rollout: Rollout, evidence: Evidence) -> tuple[Event, str] | None:
    for name, word in evidence.agents.items():
        # An agent that obeys the candidate has not refused it: what it refused is a plan, or it has taken it since.
        if word.refused_digest == rollout.candidate != word.policy_digest:
            return Event.REFUSED, f"{name} refuses it: {word.refused[:MAX_REFUSAL]}"
    return None


def _regressed(rollout: Rollout, rules: RolloutRules, evidence: Evidence) -> tuple[Event, str] | None:
    def obeys(word: AgentWord) -> bool:
        return rollout.digest_for(word.region) == rollout.candidate

    now = _since(rollout.marks, _those(evidence, obeys))
    enough = max(1, rules.min_requests)
    if now.ended < enough:
        return None
    usual = _sum(one for region, one in rollout.before.items() if rollout.digest_for(region) == rollout.candidate)
    against = "before"
    if usual.ended < enough:
        usual, against = _since(rollout.marks, _those(evidence, lambda word: not obeys(word))), "elsewhere"
    if usual.ended < enough:
        usual, against = RequestCounts(), "of none known"
    if now.failed_share > usual.failed_share + rules.max_failure_increase:
        return Event.REGRESSED, f"{now.failed_share:.1%} of requests fail, {usual.failed_share:.1%} {against}"
    if usual.begun and now.mean_first_byte_s > usual.mean_first_byte_s * rules.max_latency_factor:
        told = f"answers begin after {now.mean_first_byte_s:.3f} s, {usual.mean_first_byte_s:.3f} s {against}"
        return Event.REGRESSED, told
    return None


def _missed(rollout: Rollout, rules: RolloutRules, evidence: Evidence) -> tuple[Event, str] | None:
    """Whether a region that obeys the candidate breaks a service objective, and did not before or others do not."""
    kept = {region: _kept_since(rollout.marks, there) for region, there in _by_region(evidence).items()}
    obeying = [region for region in kept if rollout.digest_for(region) == rollout.candidate]
    elsewhere = together(one for region in kept.keys() - obeying for one in kept[region])
    for region in obeying:
        before = together(rollout.kept_before.get(region, ()))
        told = broken(together(kept[region]), before, elsewhere, max(1, rules.min_requests))
        if told is not None:
            return Event.REGRESSED, f"in {region}, {told}"
    return None


def _marked(rollout: Rollout, evidence: Evidence) -> Rollout:
    """With the counters that the phase begins with, and what the shadow saw if it is just over.

    An agent that is heard later, be it that a restart gave it another name or that another leader hears it first, is
    judged from then on: a canary region whose agents are all new could prove nothing otherwise.
    """
    if rollout.is_over:
        return rollout
    marks = _marks(evidence, rollout.marks or {})
    if rollout.marks is not None and len(marks) == len(rollout.marks):
        return rollout
    after = msgspec.structs.replace(rollout, marks=marks, earlier=None)
    if rollout.earlier is None:
        return after
    by_region = _by_region(evidence)
    return msgspec.structs.replace(
        after,
        before={region: _since(rollout.earlier, there) for region, there in by_region.items()},
        kept_before={
            region: tuple(together(kept).values())
            for region, there in by_region.items()
            if (kept := _kept_since(rollout.earlier, there))
        },
    )


def _marks(evidence: Evidence, known: Mapping[str, Mark]) -> dict[str, Mark]:
    """The marks that are there, and those of agents that have none yet, as far as there is room."""
    marks = dict(known)
    room = MAX_KEPT - sum(len(mark.kept) for mark in known.values())
    new = [(name, word) for name, word in evidence.agents.items() if name not in known]
    for name, word in new[: max(0, MAX_MARKS - len(known))]:
        marks[name] = Mark(word.epoch, word.answers, word.kept[: max(0, room)])
        room -= len(marks[name].kept)
    return marks


def _by_region(evidence: Evidence) -> dict[str, dict[str, AgentWord]]:
    found: dict[str, dict[str, AgentWord]] = {}
    for name, word in sorted(evidence.agents.items()):
        found.setdefault(word.region, {})[name] = word
    return found


def _those(evidence: Evidence, which: Callable[[AgentWord], bool]) -> dict[str, AgentWord]:
    return {name: word for name, word in evidence.agents.items() if which(word)}


def _since(marks: Mapping[str, Mark] | None, agents: Mapping[str, AgentWord]) -> RequestCounts:
    """How requests ended at these agents since the marks; one without a mark says nothing, a restarted one all."""
    total = RequestCounts()
    for name, word in agents.items():
        mark = (marks or {}).get(name)
        if mark is not None:
            total += word.answers.since(mark.answers) if mark.epoch == word.epoch else word.answers
    return total


def _kept_since(marks: Mapping[str, Mark] | None, agents: Mapping[str, AgentWord]) -> list[Kept]:
    """How these agents kept objectives since the marks, with the same exceptions."""
    found: list[Kept] = []
    for name, word in agents.items():
        mark = (marks or {}).get(name)
        if mark is not None:
            found += since(mark.kept, word.kept) if mark.epoch == word.epoch else word.kept
    return found


def _sum(some: Iterable[RequestCounts]) -> RequestCounts:
    total = RequestCounts()
    for one in some:
        total += one
    return total


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
