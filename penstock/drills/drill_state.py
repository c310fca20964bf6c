"""The state of one drill, as a table of transitions; a transition that the table lacks is an error.

The state alone determines the next action, so a new leader continues a drill where the former leader stopped. The drain
of an evacuation has an expiry time, so traffic returns to the region even if no control plane is available.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.policy.kinds.operations import Exercise
from penstock.rollout.objective_analysis import ObjectiveCounts
from penstock.rollout.policy_rollout import Mark


class DrillPhase(StrEnum):
    """Phase of a drill."""

    PREPARED = "prepared"
    """The drain of the region is about to be set."""
    EVACUATING = "evacuating"
    """The drain is in force, and the region still serves requests or is still in the plan."""
    HOLDING = "holding"
    """The region serves nothing."""
    RETURNING = "returning"
    """The drain is lifted, and the region ramps back."""
    ABORTING = "aborting"
    """The drain is lifted, and the region ramps back, before the exercise was complete."""
    STEPPING_DOWN = "stepping_down"
    """The leader that began the drill steps down, and no other control plane has published a plan yet."""
    DONE = "done"
    ABORTED = "aborted"
    """The exercise was not completed, or the fleet did not return in time."""
    REFUSED = "refused"
    """The drill did not begin."""


class DrillEvent(StrEnum):
    """Event of a drill."""

    SET = "set"
    """The drain is in the store."""
    REFUSE = "refuse"
    """A condition or a guard rail does not permit the drill."""
    EMPTIED = "emptied"
    """No plan sends traffic to the region, and its endpoints hold no request."""
    HELD = "held"
    """The region has been empty for the requested time."""
    RETURNED = "returned"
    """The region has its whole share again."""
    ELECTED = "elected"
    """Another control plane leads, and has published a plan."""
    ABORT = "abort"
    """The error budget burns too fast, too many requests or a region failed, the drain ended, a time limit has passed,
    or an operator aborts."""
    OVERDUE = "overdue"
    """The region did not return in time."""


_P, _E = DrillPhase, DrillEvent

TRANSITIONS: dict[tuple[DrillPhase, DrillEvent], DrillPhase] = {
    (_P.PREPARED, _E.SET): _P.EVACUATING,
    (_P.PREPARED, _E.REFUSE): _P.REFUSED,
    (_P.PREPARED, _E.ABORT): _P.ABORTING,
    (_P.EVACUATING, _E.EMPTIED): _P.HOLDING,
    (_P.EVACUATING, _E.ABORT): _P.ABORTING,
    (_P.HOLDING, _E.HELD): _P.RETURNING,
    (_P.HOLDING, _E.ABORT): _P.ABORTING,
    (_P.RETURNING, _E.RETURNED): _P.DONE,
    (_P.RETURNING, _E.ABORT): _P.ABORTING,
    (_P.RETURNING, _E.OVERDUE): _P.ABORTED,
    (_P.ABORTING, _E.RETURNED): _P.ABORTED,
    (_P.ABORTING, _E.OVERDUE): _P.ABORTED,
    (_P.STEPPING_DOWN, _E.ELECTED): _P.DONE,
    (_P.STEPPING_DOWN, _E.ABORT): _P.ABORTED,
}

FINAL_PHASES = frozenset({DrillPhase.DONE, DrillPhase.ABORTED, DrillPhase.REFUSED})


class DrillRequest(msgspec.Struct, frozen=True):
    """The drill as an operator or the policy's schedule requests it."""

    exercise: Exercise
    region: str | None
    """The region to evacuate; None for a step-down of the leader."""
    hold_s: float
    """Time (s) for which an evacuated region stays empty."""
    max_burn_rate: float
    """Burn rate of a model's error budget above which the drill is aborted, see `DrillSchedule`."""
    reason: str
    author: str
    """Name of the operator; for a scheduled drill, `policy` with the file and line."""
    schedule: str = ""
    """Name of the drill in the policy; empty for a drill of an operator."""
    occurrence: float = 0.0
    """Scheduled start (Unix time, s); 0 for a drill of an operator."""


class DrillStep(msgspec.Struct, frozen=True):
    """A phase that a drill entered."""

    phase: DrillPhase
    at: float
    """Unix time (s) by the clock of the leader."""
    why: str
    by: str = ""
    """Name of the operator who caused the transition; empty for automatic transitions."""


class Drill(msgspec.Struct, frozen=True):
    """State of one drill; `transition` returns the next one."""

    number: int
    """Number of the drill; increases by one with every drill."""
    request: DrillRequest
    steps: tuple[DrillStep, ...]
    """The phases entered, the present one last."""
    epoch: int
    """Fencing epoch of the leader that began the drill."""
    leader: str
    """Name of the control plane that began the drill."""
    plan_epoch: int
    """Epoch of the plan in force at the beginning."""
    audit_seq: int
    """Number of the last change that was acknowledged before the beginning."""
    handled: dict[str, float] = {}
    """Last occurrence (Unix time, s) that began or was refused, by name of the scheduled drill."""
    marks: dict[str, Mark] = {}
    """Agents' counters at the beginning, by `region/agent`; empty once the drill is over."""
    requests: RequestCounts = RequestCounts()
    """Results of all requests of the fleet since the beginning."""
    objectives: tuple[ObjectiveCounts, ...] = ()
    """Attainment of the service objectives since the beginning."""
    lost_changes: int | None = None
    """Number of acknowledged changes that the new leader does not have; None before a new leader is observed."""

    @property
    def phase(self) -> DrillPhase:
        """The present phase."""
        return self.steps[-1].phase

    @property
    def since(self) -> float:
        """Unix time (s) at which the present phase was entered."""
        return self.steps[-1].at

    @property
    def began_at(self) -> float:
        """Unix time (s) of the beginning."""
        return self.steps[0].at

    @property
    def is_over(self) -> bool:
        """Whether the drill is in a final phase."""
        return self.phase in FINAL_PHASES

    @property
    def override_id(self) -> str:
        """The identifier of the drain that an evacuation sets."""
        return f"drill-{self.number}"

    @property
    def rto_s(self) -> float | None:
        """Recovery time (s): until the region served nothing, or another leader's plan was in force. None before."""
        reached = self._entered(DrillPhase.HOLDING if self.request.region is not None else DrillPhase.DONE)
        return None if reached is None else reached - self.began_at

    @property
    def return_s(self) -> float | None:
        """Time (s) from the lift of the drain until the region had its whole share again."""
        lifted, done = self._entered(DrillPhase.RETURNING), self._entered(DrillPhase.DONE)
        return None if lifted is None or done is None else done - lifted

    def _entered(self, phase: DrillPhase) -> float | None:
        return next((step.at for step in self.steps if step.phase is phase), None)


def transition(drill: Drill, event: DrillEvent, now: float, *, why: str, by: str = "") -> Drill:
    """Returns the drill after an event.

    Raises:
        KeyError: the table has no such transition.
    """
    phase = TRANSITIONS[drill.phase, event]
    after = msgspec.structs.replace(drill, steps=(*drill.steps, DrillStep(phase, now, why, by)))
    return msgspec.structs.replace(after, marks={}) if after.is_over else after


def first_phase(exercise: Exercise) -> DrillPhase:
    """Returns the phase in which a drill begins."""
    return DrillPhase.PREPARED if exercise is Exercise.EVACUATE_REGION else DrillPhase.STEPPING_DOWN
