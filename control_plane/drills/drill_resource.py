"""The report of a drill, for the API and the CLI."""

from __future__ import annotations

import msgspec

from penstock.drills.drill_progress import burn_rate
from penstock.drills.drill_state import Drill, DrillPhase, DrillStep
from penstock.policy.kinds.operations import Exercise
from penstock.policy.service_objective import Measure


class ObjectiveResult(msgspec.Struct, frozen=True):
    """Attainment of one service objective during a drill, over all agents of the fleet."""

    model: str
    limit_s: float
    """Limit (s) of the measured time."""
    share: float
    """Target share (0-1)."""
    answers: int
    """Requests for the model that succeeded or failed since the beginning of the drill."""
    attained: float
    """Share (0-1) of `answers` that succeeded within `limit_s`."""
    burn_rate: float
    """Burn rate of the error budget; a rate of 1 uses the budget up exactly."""
    measure: Measure = Measure.FIRST_BYTE
    """The measured time: `first_byte` of streams, or `total` of responses that are not streamed."""


class DrillReport(msgspec.Struct, frozen=True):
    """One drill, and its results."""

    number: int
    exercise: Exercise
    region: str | None
    """The evacuated region; null for a step-down of the leader."""
    phase: DrillPhase
    why: str
    """Reason of the last change of phase."""
    reason: str
    """Reason of the drill."""
    author: str
    """The operator, or the policy's file and line."""
    schedule: str
    """Name of the scheduled drill in the policy; empty for a drill that an operator began."""
    began_at: float
    """Unix time (s) of the beginning."""
    steps: tuple[DrillStep, ...]
    """The phases that the drill has entered, the current phase last."""
    hold_s: float
    """Time (s) for which the region stays empty."""
    max_burn_rate: float
    """Burn rate of an error budget at which the drill is aborted."""
    rto_s: float | None
    """Recovery time (s) until the region served nothing, or another leader's plan was in force; null until then."""
    return_s: float | None
    """Time (s) from the lift of the drain until the region had its whole share again; null until then."""
    rpo: int | None
    """Number of the fleet's requests that failed during an evacuation, or of acknowledged changes that the new leader
    does not have; null before another control plane leads."""
    requests: int
    """Requests of the whole fleet that ended since the beginning."""
    failed_requests: int
    """Requests of the whole fleet that failed or were refused since the beginning."""
    objectives: tuple[ObjectiveResult, ...]


def drill_report(drill: Drill) -> DrillReport:
    """Return the report of a drill."""
    request, is_evacuation = drill.request, drill.request.exercise is Exercise.EVACUATE_REGION
    return DrillReport(
        number=drill.number,
        exercise=request.exercise,
        region=request.region,
        phase=drill.phase,
        why=drill.steps[-1].why,
        reason=request.reason,
        author=request.author,
        schedule=request.schedule,
        began_at=drill.began_at,
        steps=drill.steps,
        hold_s=request.hold_s,
        max_burn_rate=request.max_burn_rate,
        rto_s=drill.rto_s,
        return_s=drill.return_s,
        rpo=drill.requests.failed if is_evacuation else drill.lost_changes,
        requests=drill.requests.ended,
        failed_requests=drill.requests.failed,
        objectives=tuple(
            ObjectiveResult(
                counts.model,
                counts.limit_s,
                counts.share,
                counts.answers,
                counts.attained,
                burn_rate(counts),
                counts.measure,
            )
            for counts in drill.objectives
        ),
    )
