"""Judges the new version of a model by the old one at the same time, with the judgement of canary policies.

Results of both versions are compared from the beginning of a step. Where the old version has too few requests in it,
as after a blue-green change, its results in the phase before are the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import msgspec
from msgspec import UNSET

from penstock.fleet.counts.version_counts import VersionCounts
from penstock.fleet.snapshot import FadedPool, Snapshot, freshness
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.model_versions import WHOLE_PERCENT
from penstock.rollout.canary_analysis import exceeded, first_significant, greater_mean
from penstock.rollout.model_rollout import (
    MAX_MARKS,
    ModelEvent,
    ModelPhase,
    ModelRolloutState,
    VersionMark,
    next_step,
    transition,
)
from penstock.rollout.rollout_progress import Condition, Finding, VersionOutlook, elapsed, undecided
from penstock.rollout.significance import Sample, mean_is_above

SAME_TIME = "of the old version at the same time"
BEFORE = "of the old version before"


class Comparison(msgspec.Struct, frozen=True):
    """The results by which a new version is judged."""

    new: VersionCounts = VersionCounts()
    old: VersionCounts = VersionCounts()
    """Of the old version since the step began."""
    before: VersionCounts = VersionCounts()
    """Of the old version in the phase before."""


class VersionEvidence(msgspec.Struct, frozen=True):
    """The part of the reports that a rollout uses."""

    agents: Mapping[str, VersionMark]
    """Counters of both versions by `region/agent`; only agents with a recent report."""
    ready: int = 0
    """Ready endpoints of the new version."""
    slots: int = 0
    """Their slots."""
    in_flight: int = 0
    """Requests that run or wait for both versions."""


def evidence_of(
    state: ModelRolloutState, snapshot: Snapshot, seen: Mapping[tuple[str, str], FadedPool], now: float
) -> VersionEvidence:
    """Returns the evidence for a rollout in the reports of agents; `seen` are the pools of the snapshot."""
    agents, none = {}, VersionCounts()
    for (region, agent), held in sorted(snapshot.agents.items()):
        if freshness(now - held.received_at) > 0.0:
            counts = {each.model: each.counts for each in held.report.versions if each.name == state.name}
            old, new = counts.get(state.old, none), counts.get(state.to, none)
            agents[f"{region}/{agent}"] = VersionMark(held.report.epoch, old, new)
    found = [pool.report for (_, model), pool in seen.items() if model in (state.old, state.to)]
    of_new = [report for report in found if report.model == state.to]
    return VersionEvidence(
        agents,
        sum(report.ready for report in of_new),
        sum(report.slots for report in of_new),
        sum(report.in_flight for report in found),
    )


def compared(state: ModelRolloutState, evidence: VersionEvidence) -> Comparison:
    """Returns the results since the phase or step began. Agents without a mark are ignored."""
    old = new = VersionCounts()
    for name, counts in evidence.agents.items():
        mark = (state.marks or {}).get(name)
        if mark is not None:
            # An agent that has restarted, or had a policy without the rollout in between, counts from zero.
            continues = mark.epoch == counts.epoch and (
                counts.old.requests.ended >= mark.old.requests.ended
                and counts.new.requests.ended >= mark.new.requests.ended
            )
            old += counts.old.since(mark.old) if continues else counts.old
            new += counts.new.since(mark.new) if continues else counts.new
    return Comparison(new, old, state.before)


def findings(rollout: ModelRollout, results: Comparison, *, needed: int | None = None) -> list[Finding]:
    """Returns the results of the new version that are worse than the limits permit.

    More failures than `needed` requests may have are judged before there are as many requests.

    Args:
        needed: minimum number of requests of the new version; None: `min_requests`.
    """
    enough = max(1, rollout.min_requests if needed is None else needed)
    if results.old.requests.ended >= enough:
        usual, baseline = results.old, SAME_TIME
    else:
        usual, baseline = results.before, BEFORE
    new, known = results.new, usual.requests if usual.requests.ended >= enough else None
    max_increase, max_factor = rollout.max_failure_increase, rollout.max_first_byte_factor
    found = exceeded(new.requests, known, baseline, max_increase, max_factor, enough)
    # Of however few requests the engine measured times and lengths: whether they suffice is a question of chance.
    is_compared = known is not None and new.requests.ended >= enough
    if is_compared and new.timed and usual.timed:
        text = "mean time per output token is {:.4f} s, {:.4f} s " + baseline
        time, usual_time = (Sample.of(each.timed, each.token_s, each.token_s2) for each in (new, usual))
        found += greater_mean(time, usual_time, rollout.max_token_time_factor, text)
    if is_compared and new.answers and usual.answers:
        length, usual_length = (
            Sample.of(each.answers, each.answer_tokens, each.answer_tokens2) for each in (new, usual)
        )
        text = "mean length of an answer is {:.0f} tokens, {:.0f} " + baseline
        found += greater_mean(length, usual_length, rollout.max_length_factor, text)
        text = "mean length of an answer is {1:.0f} tokens, {0:.0f} " + baseline
        found += greater_mean(usual_length, length, rollout.max_length_factor, text)
    return found + _of_scores(rollout, new)


def _of_scores(rollout: ModelRollout, new: VersionCounts) -> list[Finding]:
    """Returns the finding that the quality hook prefers the old version by more than the limit permits.

    A pair that was not scored is no evidence: a hook that fails rolls nothing back.
    """
    quality = rollout.shadow.quality if rollout.shadow else UNSET
    if not quality or new.scored < quality.min_pairs:
        return []
    preference = Sample.of(new.scored, -new.score, new.score2)
    if preference.mean <= quality.max_decrease:
        return []
    least = -quality.max_decrease
    text = f"mean score of {new.scored} pairs of answers is {new.mean_score:.3f}, the least permitted is {least:g}"
    return [Finding(text, mean_is_above(preference, quality.max_decrease))]


def conditions(
    state: ModelRolloutState, rollout: ModelRollout, evidence: VersionEvidence, now: float
) -> tuple[Condition, ...]:
    """Returns the conditions that end the phase of a rollout, apart from regressions; none once it is over."""
    elapsed_s, results = now - state.since, compared(state, evidence)
    match state.phase:
        case ModelPhase.PREPARING:
            copies = rollout.shadow
            found = [elapsed(elapsed_s, rollout.prepare_s, "of preparation")]
            if next_step(rollout, state.percent) == WHOLE_PERCENT:
                # Blue-green: afterwards, no request measures the old version.
                found.append(_ended("the old version", results.old, rollout.min_requests))
            if copies is not UNSET and copies.min_requests:
                found.append(_ended("copies", results.new, copies.min_requests))
            if copies is not UNSET and copies.quality is not UNSET:
                found.append(_scored(results.new, copies.quality.min_pairs))
            return (*found, *_room(state, rollout, evidence), *undecided(_findings(state, rollout, results)))
        case ModelPhase.STEP:
            time = elapsed(elapsed_s, rollout.step_s, f"at {state.percent:g} %")
            ended = _ended("the new version", results.new, rollout.min_requests)
            return time, ended, *_room(state, rollout, evidence), *undecided(_findings(state, rollout, results))
        case ModelPhase.WATCH:
            time = elapsed(elapsed_s, rollout.watch_s, f"at {state.percent:g} %")
            # After a blue-green change, no request of the new version has been judged before.
            return time, _ended("the new version", results.new, rollout.min_requests)
        case ModelPhase.HELD:
            return (Condition("an operator resumes, promotes or rolls back", False),)
    return ()


def version_outlook(
    state: ModelRolloutState, rollout: ModelRollout, evidence: VersionEvidence, now: float
) -> VersionOutlook | None:
    """Returns what a rollout waits for, for operators; None once it is done."""
    if state.phase is ModelPhase.DONE:
        return None
    unmet = "; ".join(each.text for each in conditions(state, rollout, evidence, now) if not each.is_met)
    if state.phase in (ModelPhase.ROLLED_BACK, ModelPhase.HELD):
        text = f"{state.phase.value.replace('_', ' ')}: {state.why}"
    else:
        text = f"{state.phase.value} at {state.percent:g} %" + (f", waits for: {unmet}" if unmet else "")
    return VersionOutlook(f"{state.name} to {state.to}", text)


def waits_s(state: ModelRolloutState, rollout: ModelRollout, now: float) -> float:
    """Returns the time (s) for which a rollout has waited for more than the time that its phase lasts at least."""
    least_s = {
        ModelPhase.PREPARING: rollout.prepare_s,
        ModelPhase.STEP: rollout.step_s,
        ModelPhase.WATCH: rollout.watch_s,
        ModelPhase.HELD: 0.0,
    }.get(state.phase, inf)
    return max(0.0, now - state.since - least_s)


def _ended(what: str, counts: VersionCounts, needed: int) -> Condition:
    ended = counts.requests.ended
    return Condition(f"{ended} of {needed} requests of {what} ended", ended >= needed)


def _scored(counts: VersionCounts, needed: int) -> Condition:
    text = f"{counts.scored} of {needed} pairs of answers scored"
    if counts.unscored:
        text += f"; the quality hook failed for {counts.unscored} others"
    return Condition(text, counts.scored >= needed)


def _room(state: ModelRolloutState, rollout: ModelRollout, evidence: VersionEvidence) -> tuple[Condition, ...]:
    """The new version has a ready endpoint, and slots for the share of the next step."""
    step = next_step(rollout, state.percent)
    if step is None:
        return ()
    expected = evidence.in_flight * step / WHOLE_PERCENT
    text = f"the new version has {evidence.slots} ready slots for {expected:.0f} requests at {step:g} %"
    if not evidence.ready:
        text = f"the new version has no ready endpoint for {step:g} %; `penstock endpoints` has the reasons"
    return (Condition(text, evidence.ready > 0 and evidence.slots >= expected),)


def observe(
    state: ModelRolloutState, rollout: ModelRollout, evidence: VersionEvidence, now: float
) -> ModelRolloutState:
    """Returns the state after the transition that the evidence justifies; the same state if there is none."""
    if state.phase is ModelPhase.DONE and next_step(rollout, state.percent) is not None:
        return transition(state, ModelEvent.EXTENDED, rollout, now, why="the policy has a further step")
    if state.is_over or not evidence.agents:
        return state
    state = _marked(state, evidence)
    results = compared(state, evidence)
    verdict = _verdict(state, rollout, results, conditions(state, rollout, evidence, now))
    if verdict is None:
        return state
    event, why = verdict
    after = transition(state, event, rollout, now, why=why)
    if results.old.requests.ended >= rollout.min_requests:
        after = msgspec.structs.replace(after, before=results.old)
    return after


def _verdict(
    state: ModelRolloutState, rollout: ModelRollout, results: Comparison, unmet: tuple[Condition, ...]
) -> tuple[ModelEvent, str] | None:
    reason = first_significant(_findings(state, rollout, results))
    if reason is not None:
        return ModelEvent.REGRESSED, reason
    if not all(condition.is_met for condition in unmet):
        return None
    ended = results.new.requests.ended
    if state.phase is ModelPhase.WATCH:
        return ModelEvent.SETTLED, f"no regression in {ended} requests at {state.percent:g} %"
    step = next_step(rollout, state.percent)
    if step is None or step == rollout.steps[-1]:
        return ModelEvent.LAST, f"no regression in {ended} requests of the new version"
    return ModelEvent.PROVEN, f"no regression in {ended} requests of the new version"


def _findings(state: ModelRolloutState, rollout: ModelRollout, results: Comparison) -> list[Finding]:
    # Without a share and without copies, the new version has no results.
    copies = rollout.shadow if state.phase is ModelPhase.PREPARING else UNSET
    return findings(rollout, results, needed=copies.min_requests if copies else None)


def _marked(state: ModelRolloutState, evidence: VersionEvidence) -> ModelRolloutState:
    """Returns the state with the counters of agents that are new since the phase began, up to MAX_MARKS."""
    marks = dict(state.marks or {})
    new = [item for item in evidence.agents.items() if item[0] not in marks]
    marks.update(new[: MAX_MARKS - len(marks)])
    if state.marks is not None and len(marks) == len(state.marks):
        return state
    return msgspec.structs.replace(state, marks=marks)
