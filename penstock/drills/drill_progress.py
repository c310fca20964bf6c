"""The next step of a drill: a function of its state and of the leader's observations."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.drills.drill_state import Drill, DrillEvent, DrillPhase, transition
from penstock.overrides.overrides import Override, OverrideKind
from penstock.policy.service_objective import within_text
from penstock.rollout.canary_analysis import AgentObservation, objectives_since, requests_since, with_marks
from penstock.rollout.objective_analysis import ObjectiveCounts, merge_counts

SET_WITHIN_S = 60.0
"""Time limit (s) for setting the drain, which takes longer only if the store does not respond."""

EVACUATE_WITHIN_S = 900.0
"""Time limit (s) of an evacuation; long streams are not cut off, so they need time to end."""

RETURN_WITHIN_S = 300.0
"""Time limit (s) of a return, beyond the policy's failback ramp."""

TAKE_OVER_WITHIN_S = 60.0
"""Time limit (s) of a step-down of the leader."""

MARGIN_S = 60.0
"""Time (s) between the time limits of an evacuation and the expiry of its drain, which no leader has to lift."""

MAX_FAILED_SHARE = 0.05
"""Maximum share (0-1) of the fleet's requests that may fail during a drill; it also covers models without an
objective."""

MIN_REQUESTS = 20
"""Minimum number of finished requests for MAX_FAILED_SHARE to apply."""


class Observed(msgspec.Struct, frozen=True):
    """Observations of the leader at one moment."""

    epoch: int
    """Fencing epoch of the leader."""
    leader: str
    """Name of the leader."""
    plan_epoch: int
    """Lowest epoch of the slices of the plan in force."""
    audit_seq: int
    """Number of the last audited change that the leader can read."""
    agents: Mapping[str, AgentObservation]
    """Observations of the agents, by `region/agent`."""
    failed: tuple[str, ...] = ()
    """Regions that have failed."""
    ramp_s: float = 0.0
    """Failback ramp of the policy (s)."""
    override: Override | None = None
    """The drain of the drill in the store; None if the store has none."""
    share: float = 0.0
    """Largest share (0-1) of any traffic class that the plan in force sends to the region."""
    in_flight: int = 0
    """Requests in flight on the region's endpoints, by the last reports of the region."""
    reported_at: float = 0.0
    """Time (s) of the oldest of the newest reports of the region's agents."""
    is_healthy: bool = True
    """Whether the region is healthy, and not on its failback ramp."""


class SetOverride(msgspec.Struct, frozen=True):
    """Set the drain, within the guard rails."""

    override: Override


class LiftOverride(msgspec.Struct, frozen=True):
    """Lift the drain."""

    override_id: str
    reason: str


class StepDown(msgspec.Struct, frozen=True):
    """Step down as leader, so that another control plane campaigns first."""


Effect = SetOverride | LiftOverride | StepDown


def on_tick(drill: Drill, seen: Observed, now: float) -> tuple[Drill, tuple[Effect, ...]]:
    """Returns the drill after all transitions that the observation justifies, and the effects to perform in its phase.

    Effects depend on the phase and are repeated until they are observed; they are idempotent.

    Args:
        now: the leader's clock (Unix time, s).
    """
    if drill.is_over:
        return drill, ()
    drill = _counted(drill, seen)
    while not drill.is_over and (verdict := judge(drill, seen, now)) is not None:
        drill = transition(drill, verdict[0], now, why=verdict[1])
    return drill, _effects(drill, seen, now)


def judge(drill: Drill, seen: Observed, now: float) -> tuple[DrillEvent, str] | None:
    """Returns the event that the observation justifies, with its reason; None for no event."""
    elapsed_s = now - drill.since
    match drill.phase:
        case DrillPhase.STEPPING_DOWN:
            return _taken_over(drill, seen, elapsed_s)
        case DrillPhase.PREPARED if seen.override is not None:
            return DrillEvent.SET, "the drain is set"
        case DrillPhase.PREPARED if elapsed_s > SET_WITHIN_S:
            return DrillEvent.ABORT, f"the drain could not be set within {SET_WITHIN_S:g} s"
        case DrillPhase.EVACUATING | DrillPhase.HOLDING | DrillPhase.RETURNING:
            return _problem(drill, seen, now) or _advanced(drill, seen, now)
        case DrillPhase.ABORTING:
            return _returned(seen, now, elapsed_s)
    return None


def burning_objective(drill: Drill) -> str | None:
    """Describes the first objective whose error budget burns too fast, or the requests that failed; None if none."""
    for counts in drill.objectives:
        rate = burn_rate(counts)
        if rate > drill.request.max_burn_rate and counts.is_broken:
            return (
                f"the error budget of {counts.model} burns at {rate:.1f} times its rate, more than"
                f" {drill.request.max_burn_rate:g}: {counts.attained:.2%} of answers"
                f" {within_text(counts.limit_s, counts.measure)}"
            )
    if drill.requests.ended >= MIN_REQUESTS and drill.requests.failed_share > MAX_FAILED_SHARE:
        return f"{drill.requests.failed_share:.1%} of requests fail, more than {MAX_FAILED_SHARE:.0%}"
    return None


def burn_rate(counts: ObjectiveCounts) -> float:
    """Returns the burn rate of an error budget; a rate of 1 uses up the budget exactly."""
    return (1.0 - counts.attained) / (1.0 - counts.share)


def _counted(drill: Drill, seen: Observed) -> Drill:
    """Returns the drill with the results of requests since its beginning; of later agents, since their first report."""
    return msgspec.structs.replace(
        drill,
        marks=with_marks(seen.agents, drill.marks),
        requests=requests_since(drill.marks, seen.agents),
        objectives=tuple(merge_counts(objectives_since(drill.marks, seen.agents)).values()),
        lost_changes=max(0, drill.audit_seq - seen.audit_seq) if seen.epoch != drill.epoch else drill.lost_changes,
    )


def _taken_over(drill: Drill, seen: Observed, elapsed_s: float) -> tuple[DrillEvent, str] | None:
    if seen.epoch != drill.epoch and seen.plan_epoch > drill.plan_epoch:
        if seen.leader == drill.leader:
            return DrillEvent.ABORT, f"no other control plane took over from {drill.leader}"
        return DrillEvent.ELECTED, f"{seen.leader} leads, and its plan is in force"
    if elapsed_s > TAKE_OVER_WITHIN_S:
        return DrillEvent.ABORT, f"no other control plane took over within {TAKE_OVER_WITHIN_S:g} s"
    return None


def _problem(drill: Drill, seen: Observed, now: float) -> tuple[DrillEvent, str] | None:
    if (burning := burning_objective(drill)) is not None:
        return DrillEvent.ABORT, burning
    if seen.failed:
        return DrillEvent.ABORT, f"{', '.join(seen.failed)} failed"
    is_drained = seen.override is not None and seen.override.holds(now)
    if drill.phase is not DrillPhase.RETURNING and not is_drained:
        return DrillEvent.ABORT, "the drain was lifted or has expired"
    return None


def _advanced(drill: Drill, seen: Observed, now: float) -> tuple[DrillEvent, str] | None:
    elapsed_s = now - drill.since
    if drill.phase is DrillPhase.EVACUATING:
        if seen.share <= 0.0 and seen.in_flight == 0 and seen.reported_at > drill.since:
            return DrillEvent.EMPTIED, f"{drill.request.region} serves nothing"
        if elapsed_s > EVACUATE_WITHIN_S:
            held = f"{seen.in_flight} requests and {seen.share:.0%} of a traffic class"
            return DrillEvent.ABORT, f"{drill.request.region} still has {held} after {EVACUATE_WITHIN_S:g} s"
        return None
    if drill.phase is DrillPhase.HOLDING:
        held_s = drill.request.hold_s
        return (DrillEvent.HELD, f"it was empty for {held_s:g} s") if elapsed_s >= held_s else None
    return _returned(seen, now, elapsed_s)


def _returned(seen: Observed, now: float, elapsed_s: float) -> tuple[DrillEvent, str] | None:
    has_ended = seen.override is None or seen.override.over(now, seen.ramp_s)
    if has_ended and seen.is_healthy:
        return DrillEvent.RETURNED, "the region has its whole share again"
    if elapsed_s > seen.ramp_s + RETURN_WITHIN_S:
        return DrillEvent.OVERDUE, f"the region did not return within {seen.ramp_s + RETURN_WITHIN_S:g} s"
    return None


def _effects(drill: Drill, seen: Observed, now: float) -> tuple[Effect, ...]:
    if drill.phase is DrillPhase.PREPARED:
        return (SetOverride(_drain(drill, seen, now)),)
    lifts = drill.phase in (DrillPhase.RETURNING, DrillPhase.ABORTING)
    if lifts and seen.override is not None and now < seen.override.ends_at:
        return (LiftOverride(drill.override_id, f"drill {drill.number}: {drill.steps[-1].why}"),)
    if drill.phase is DrillPhase.STEPPING_DOWN and seen.epoch == drill.epoch:
        return (StepDown(),)
    return ()


def _drain(drill: Drill, seen: Observed, now: float) -> Override:
    return Override(
        id=drill.override_id,
        kind=OverrideKind.DRAIN,
        reason=f"drill {drill.number}: {drill.request.reason}"[:500],
        author=drill.request.author,
        begins_at=now,
        region=drill.request.region,
        expires_at=now + EVACUATE_WITHIN_S + drill.request.hold_s + MARGIN_S,
    )
