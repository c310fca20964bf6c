"""Judges a candidate policy: compares reports of agents that apply it with earlier reports and with other regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.snapshot import Snapshot, freshness
from penstock.policy.kinds.operations import RolloutRules
from penstock.rollout.objective_analysis import ObjectiveCounts, broken_objective, counts_of, counts_since, merge_counts
from penstock.rollout.policy_rollout import IN_CANARY, Mark, Phase, Rollout, RolloutEvent, transition
from penstock.rollout.rollout_progress import MAX_NAMED, Finding, PhaseFacts, conditions
from penstock.rollout.significance import Sample, is_greater, share_is_above, share_is_greater

MAX_MARKS = 4_500
"""Maximum number of agents whose counters are marked, since a rollout must fit into one value of the store."""

MAX_KEPT = 3_000
"""Maximum number of service objectives in the marks of all agents together; each takes about half the space of an
agent."""

MAX_REFUSAL = 500
"""Maximum length, in characters, of an agent's own error text in a message."""


class AgentObservation(msgspec.Struct, frozen=True):
    """The part of an agent's last report that rollouts use."""

    region: str
    epoch: int
    policy_digest: str
    """The policy in force at the agent."""
    refused_digest: str
    refused: str
    request_counts: RequestCounts
    objectives: tuple[ObjectiveCounts, ...] = ()


class Evidence(msgspec.Struct, frozen=True):
    """The evidence by which a candidate is judged at one moment."""

    agents: Mapping[str, AgentObservation]
    """By `region/agent`; only agents with a recent report."""
    moved_share: float | None = None
    """Share (0-1) of all demand that the candidate's plan serves elsewhere; None before the first comparison."""
    receiving_since: float = 0.0
    """When the present leader began to receive reports (s); a missing report before this time is not evidence."""


def observations(snapshot: Snapshot, now: float) -> dict[str, AgentObservation]:
    """Returns the last observation of every agent with a recent report, by `region/agent`."""
    return {
        f"{region}/{name}": AgentObservation(
            region,
            held.report.epoch,
            held.report.policy_digest,
            held.report.refused_digest,
            held.report.refused_plan,
            held.report.request_counts,
            counts_of(held.report.objectives),
        )
        for (region, name), held in sorted(snapshot.agents.items())
        if freshness(now - held.received_at) > 0.0
    }


def observe(rollout: Rollout, rules: RolloutRules, evidence: Evidence, now: float) -> Rollout:
    """Returns the rollout after all transitions that the evidence justifies; the same rollout if there is none.

    Args:
        rules: of the stable policy, so that a candidate cannot loosen its own conditions.
        now: the leader's clock, in seconds.
    """
    rollout = _marked(rollout, evidence)
    while not rollout.is_over and (verdict := judge(rollout, rules, evidence, now)) is not None:
        event, why = verdict
        after = transition(rollout, event, now, why=why)
        if rollout.phase is Phase.SHADOW:
            after = msgspec.structs.replace(after, moved_share=evidence.moved_share)
        rollout = _marked(after, evidence)
    return rollout


def judge(rollout: Rollout, rules: RolloutRules, evidence: Evidence, now: float) -> tuple[RolloutEvent, str] | None:
    """Returns the event that the evidence justifies for a rollout in progress, with its reason; None for no event."""
    facts = phase_facts(rollout, rules, evidence)
    is_waiting = not all(condition.is_met for condition in conditions(rollout, rules, facts, now))
    if rollout.phase is Phase.SHADOW:
        return None if is_waiting else _shadowed(rules, evidence.moved_share)
    if rollout.phase is Phase.CANARY and not rollout.canary:
        return RolloutEvent.PROVEN, "the stable policy names no canary region"
    if rollout.phase not in IN_CANARY and rollout.phase is not Phase.WATCH:
        return None
    bad = _refused(rollout, evidence) or _regressed(facts.findings) or _missed(rollout, rules, evidence)
    if bad is not None:
        return bad
    if rollout.phase is Phase.CANARY:
        late = _unaccepted(rollout, rules, facts, now)
        if late is not None or is_waiting:
            return late
        return RolloutEvent.PROVEN, f"no regression in {facts.ended} requests in {', '.join(rollout.canary)}"
    if rollout.phase is Phase.WATCH and not is_waiting:
        return RolloutEvent.SETTLED, f"no regression within {rules.watch_s:g} s in all regions"
    return None


def phase_facts(rollout: Rollout, rules: RolloutRules, evidence: Evidence) -> PhaseFacts:
    """Returns what a rollout's phase is judged by; `rules` are those of the stable policy."""
    canary = {name: agent for name, agent in evidence.agents.items() if agent.region in rollout.canary}
    return PhaseFacts(
        evidence.moved_share is not None,
        tuple(sorted(set(rollout.canary) - {agent.region for agent in canary.values()})),
        tuple(name for name, agent in canary.items() if agent.policy_digest != rollout.candidate),
        requests_since(rollout.marks, canary).ended,
        evidence.receiving_since,
        () if rollout.is_over else tuple(_findings(rollout, rules, evidence)),
    )


def _shadowed(rules: RolloutRules, moved: float | None) -> tuple[RolloutEvent, str]:
    if rules.shadow_s == 0.0:
        return RolloutEvent.AGREED, "the rollout rules have no shadow phase"
    assert moved is not None
    if moved > rules.max_moved_share:
        return RolloutEvent.DIFFERED, f"it would move {moved:.1%} of demand, more than {rules.max_moved_share:.1%}"
    return RolloutEvent.AGREED, f"it moves {moved:.1%} of demand"


def _unaccepted(
    rollout: Rollout, rules: RolloutRules, facts: PhaseFacts, now: float
) -> tuple[RolloutEvent, str] | None:
    """Returns the event that ends the canary phase because a canary region did not accept the candidate in time."""
    since = max(rollout.since, facts.receiving_since)
    if not (facts.silent or facts.lagging) or now - since < rules.acknowledge_timeout_s:
        return None
    if facts.silent:
        return RolloutEvent.ABSENT, f"no agent of {', '.join(facts.silent)} reports"
    late = f"{_named(list(facts.lagging))} did not accept it within {rules.acknowledge_timeout_s:g} s"
    return RolloutEvent.UNACKNOWLEDGED, late


def _refused(rollout: Rollout, evidence: Evidence) -> tuple[RolloutEvent, str] | None:
    for name, agent in evidence.agents.items():
        # An agent that applies the candidate rejected only a plan, or has since accepted the policy.
        if agent.refused_digest == rollout.candidate != agent.policy_digest:
            return RolloutEvent.REFUSED, f"{name} rejects it: {agent.refused[:MAX_REFUSAL]}"
    return None


def _regressed(findings: Iterable[Finding]) -> tuple[RolloutEvent, str] | None:
    reason = first_significant(findings)
    return None if reason is None else (RolloutEvent.REGRESSED, reason)


def _findings(rollout: Rollout, rules: RolloutRules, evidence: Evidence) -> list[Finding]:
    """Returns the results of the regions under the candidate that are beyond the limits."""

    def applies(agent: AgentObservation) -> bool:
        return rollout.digest_for(agent.region) == rollout.candidate

    now = requests_since(rollout.marks, _selected(evidence, applies))
    enough = max(1, rules.min_requests)
    usual = _sum(
        counts for region, counts in rollout.counts_before.items() if rollout.digest_for(region) == rollout.candidate
    )
    baseline = "before"
    if usual.ended < enough:
        usual, baseline = (
            requests_since(rollout.marks, _selected(evidence, lambda agent: not applies(agent))),
            "elsewhere",
        )
    known = usual if usual.ended >= enough else None
    if known is None and now.ended < enough:
        return []
    return exceeded(now, known, baseline, rules.max_failure_increase, rules.max_latency_factor, enough)


def exceeded(
    now: RequestCounts,
    usual: RequestCounts | None,
    baseline: str,
    max_failure_increase: float,
    max_latency_factor: float,
    enough: int,
) -> list[Finding]:
    """Returns the results that are worse than usual by more than the limits.

    Before `enough` requests have ended, those that are missing count as successes, and no times are compared.

    Args:
        usual: the results to compare with; None without any, so that no failures are usual.
        baseline: where or when `usual` was measured, for operators.
        max_failure_increase: allowed increase (0-1) of the share of failed requests.
        max_latency_factor: maximum ratio of the mean times to first byte.
    """
    found, ended, share = [], max(now.ended, enough), now.failed_share
    if usual is None:
        if now.failed > max_failure_increase * ended:
            significant = share_is_above(now.failed, ended, max_failure_increase)
            found.append(Finding(f"{share:.1%} of requests fail, {0:.1%} without a baseline", significant))
        return found
    if now.failed > (usual.failed_share + max_failure_increase) * ended:
        significant = share_is_greater(now.failed, ended, usual.failed, usual.ended)
        found.append(Finding(f"{share:.1%} of requests fail, {usual.failed_share:.1%} {baseline}", significant))
    if usual.begun and now.ended >= enough:
        text = "mean time to first byte is {:.3f} s, {:.3f} s " + baseline
        found += greater_mean(_first_byte(now), _first_byte(usual), max_latency_factor, text)
    return found


def greater_mean(one: Sample, other: Sample, max_factor: float, text: str) -> list[Finding]:
    """Returns the finding that a mean is more than `max_factor` times another; none if it is not.

    Args:
        text: for operators, with a place for each mean.
    """
    if one.mean <= other.mean * max_factor:
        return []
    return [Finding(text.format(one.mean, other.mean), is_greater(one, other))]


def _first_byte(counts: RequestCounts) -> Sample:
    return Sample.of(counts.begun, counts.first_byte_s, counts.first_byte_s2)


def first_significant(findings: Iterable[Finding]) -> str | None:
    """Returns the text of the first finding that chance does not explain; None if there is none."""
    return next((finding.text for finding in findings if finding.is_significant), None)


def _missed(rollout: Rollout, rules: RolloutRules, evidence: Evidence) -> tuple[RolloutEvent, str] | None:
    """Returns REGRESSED if a region under the candidate misses a service objective that was met before, or is met
    elsewhere."""
    by_region = {region: objectives_since(rollout.marks, agents) for region, agents in _by_region(evidence).items()}
    applying = [region for region in by_region if rollout.digest_for(region) == rollout.candidate]
    elsewhere = merge_counts(counts for region in by_region.keys() - applying for counts in by_region[region])
    for region in applying:
        before = merge_counts(rollout.objectives_before.get(region, ()))
        reason = broken_objective(merge_counts(by_region[region]), before, elsewhere, max(1, rules.min_requests))
        if reason is not None:
            return RolloutEvent.REGRESSED, f"in {region}, {reason}"
    return None


def _marked(rollout: Rollout, evidence: Evidence) -> Rollout:
    """Returns the rollout with the counters at the beginning of its phase, and the shadow phase's results at its end.

    An agent that reports for the first time later (after a restart under another name, or to a new leader) is judged
    from then on. Otherwise a canary region whose agents are all new could never be judged.

    Without any report nothing is marked: a new leader may step the rollout before it receives one, and the results of
    the shadow phase would be lost.
    """
    if rollout.is_over or not evidence.agents:
        return rollout
    marks = with_marks(evidence.agents, rollout.marks or {})
    if rollout.marks is not None and len(marks) == len(rollout.marks):
        return rollout
    after = msgspec.structs.replace(rollout, marks=marks, shadow_marks=None)
    if rollout.shadow_marks is None:
        return after
    by_region = _by_region(evidence)
    return msgspec.structs.replace(
        after,
        counts_before={region: requests_since(rollout.shadow_marks, agents) for region, agents in by_region.items()},
        objectives_before={
            region: tuple(merge_counts(counts).values())
            for region, agents in by_region.items()
            if (counts := objectives_since(rollout.shadow_marks, agents))
        },
    )


def with_marks(agents: Mapping[str, AgentObservation], known: Mapping[str, Mark]) -> dict[str, Mark]:
    """Returns the existing marks and those of new agents, up to the limits."""
    marks = dict(known)
    room = MAX_KEPT - sum(len(mark.objectives) for mark in known.values())
    new = [(name, agent) for name, agent in agents.items() if name not in known]
    for name, agent in new[: max(0, MAX_MARKS - len(known))]:
        marks[name] = Mark(agent.epoch, agent.request_counts, agent.objectives[: max(0, room)])
        room -= len(marks[name].objectives)
    return marks


def _by_region(evidence: Evidence) -> dict[str, dict[str, AgentObservation]]:
    found: dict[str, dict[str, AgentObservation]] = {}
    for name, agent in sorted(evidence.agents.items()):
        found.setdefault(agent.region, {})[name] = agent
    return found


def _selected(evidence: Evidence, condition: Callable[[AgentObservation], bool]) -> dict[str, AgentObservation]:
    return {name: agent for name, agent in evidence.agents.items() if condition(agent)}


def requests_since(marks: Mapping[str, Mark] | None, agents: Mapping[str, AgentObservation]) -> RequestCounts:
    """Returns the results of requests since the marks. Agents without a mark are ignored; a restarted agent's counters
    count in full."""
    total = RequestCounts()
    for name, agent in agents.items():
        mark = (marks or {}).get(name)
        if mark is not None:
            same_process = mark.epoch == agent.epoch
            total += agent.request_counts.since(mark.request_counts) if same_process else agent.request_counts
    return total


def objectives_since(marks: Mapping[str, Mark] | None, agents: Mapping[str, AgentObservation]) -> list[ObjectiveCounts]:
    """Returns the objectives' counters since the marks, with the exceptions of `requests_since`."""
    found: list[ObjectiveCounts] = []
    for name, agent in agents.items():
        mark = (marks or {}).get(name)
        if mark is not None:
            same_process = mark.epoch == agent.epoch
            found += counts_since(mark.objectives, agent.objectives) if same_process else agent.objectives
    return found


def _sum(parts: Iterable[RequestCounts]) -> RequestCounts:
    total = RequestCounts()
    for part in parts:
        total += part
    return total


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
