"""The rollout of a version of a model as a table of state transitions; a transition that the table lacks is an error.

The new version is prepared without a share, receives more in steps while it is judged, is watched at its last share,
and remains there. The state alone determines the share, so a new leader continues where the former one stopped.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.fleet.counts.version_counts import VersionCounts
from penstock.planning.plan import VersionShare
from penstock.policy.kinds.model_rollouts import ModelRollout

MAX_MARKS = 2_000
"""Maximum number of agents whose counters are marked, since a rollout must fit into one value of the store."""


class ModelPhase(StrEnum):
    """Phase of the rollout of a version."""

    PREPARING = "preparing"
    """The share is that before the next step; the old version's results are measured, and copies run."""
    STEP = "step"
    """The new version has the share of a step."""
    HELD = "held"
    """The share remains, and is still judged, until an operator decides."""
    WATCH = "watch"
    """The new version has its last share, and is still judged."""
    DONE = "done"
    """The last share remains. A rollback is still possible."""
    ROLLED_BACK = "rolled_back"
    """The percentages of the policy apply."""


class ModelEvent(StrEnum):
    """Event of the rollout of a version."""

    PROVEN = "proven"
    """The conditions of the phase are met, and the next step is not the last."""
    LAST = "last"
    """The conditions of the phase are met, and the next step is the last."""
    SETTLED = "settled"
    """No regression at the last share for long enough."""
    EXTENDED = "extended"
    """The policy has a further step after the last share."""
    REGRESSED = "regressed"
    """The new version is worse than the limits of the rollout permit."""
    HALT = "halt"
    RESUME = "resume"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"


_P, _E = ModelPhase, ModelEvent

TRANSITIONS: dict[tuple[ModelPhase, ModelEvent], ModelPhase] = {
    (_P.PREPARING, _E.PROVEN): _P.STEP,
    (_P.PREPARING, _E.LAST): _P.WATCH,
    (_P.PREPARING, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.PREPARING, _E.HALT): _P.HELD,
    (_P.PREPARING, _E.PROMOTE): _P.WATCH,
    (_P.PREPARING, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.STEP, _E.PROVEN): _P.STEP,
    (_P.STEP, _E.LAST): _P.WATCH,
    (_P.STEP, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.STEP, _E.HALT): _P.HELD,
    (_P.STEP, _E.PROMOTE): _P.WATCH,
    (_P.STEP, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.HELD, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.HELD, _E.RESUME): _P.PREPARING,
    (_P.HELD, _E.PROMOTE): _P.WATCH,
    (_P.HELD, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.WATCH, _E.SETTLED): _P.DONE,
    (_P.WATCH, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.WATCH, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.DONE, _E.EXTENDED): _P.PREPARING,
    (_P.DONE, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.ROLLED_BACK, _E.RESUME): _P.PREPARING,
}

OPERATOR_EVENTS = (ModelEvent.HALT, ModelEvent.RESUME, ModelEvent.PROMOTE, ModelEvent.ROLL_BACK)
"""The events that operators cause."""

FINAL_PHASES = frozenset({ModelPhase.DONE, ModelPhase.ROLLED_BACK})


class VersionMark(msgspec.Struct, frozen=True, array_like=True):
    """An agent's counters of both versions at one moment."""

    epoch: int
    """Epoch of the agent: a restarted agent counts from zero."""
    old: VersionCounts
    new: VersionCounts


class ModelRolloutState(msgspec.Struct, frozen=True):
    """State of the rollout of a version; `transition` returns the next one. Times are by the leaders' clocks (s)."""

    name: str
    """Name that clients request."""
    old: str
    to: str
    """The new version."""
    phase: ModelPhase
    percent: float
    """Share (0-100) of the new version."""
    start_percent: float
    """Its share in the policy, which applies in ROLLED_BACK."""
    since: float
    """Time at which the phase, or the step, was entered."""
    began_at: float
    why: str
    """Reason of the last transition, for operators."""
    by: str = ""
    """Name of the operator who caused the last transition; empty for automatic transitions."""
    marks: dict[str, VersionMark] | None = None
    """Agents' counters when the phase or step was entered, by `region/agent`; None until a leader has reports."""
    before: VersionCounts = VersionCounts()
    """The old version's results in the phase before: the baseline where it has too few requests in this one."""

    @property
    def is_over(self) -> bool:
        """Whether the state changes only by an operator, or by a further step of the policy."""
        return self.phase in FINAL_PHASES

    @property
    def permitted(self) -> tuple[ModelEvent, ...]:
        """The events that an operator can cause in this phase."""
        return tuple(event for event in OPERATOR_EVENTS if (self.phase, event) in TRANSITIONS)

    def share(self, rollout: ModelRollout) -> VersionShare | None:
        """The entry of the plan; None if the percentages of the policy apply."""
        if self.phase is ModelPhase.ROLLED_BACK:
            return None
        copies = rollout.shadow if self.phase is ModelPhase.PREPARING else None
        goes_on = self.phase in (ModelPhase.PREPARING, ModelPhase.STEP)
        following = next_step(rollout, self.percent) if goes_on else None
        return VersionShare(self.name, self.to, self.percent, copies.percent if copies else 0.0, following or 0.0)


def begin(rollout: ModelRollout, old: str, percent: float, now: float) -> ModelRolloutState:
    """Returns the state of a new rollout of a policy.

    Args:
        percent: share (0-100) of the new version in the policy.
    """
    why = "the policy has the rollout"
    return ModelRolloutState(rollout.name, old, rollout.to, ModelPhase.PREPARING, percent, percent, now, now, why)


def next_step(rollout: ModelRollout, percent: float) -> float | None:
    """Returns the share (0-100) of the step after `percent`; None after the last one."""
    return next((step for step in rollout.steps if step > percent), None)


def transition(
    state: ModelRolloutState, event: ModelEvent, rollout: ModelRollout, now: float, *, why: str, by: str = ""
) -> ModelRolloutState:
    """Returns the state after an event.

    Raises:
        KeyError: the table has no such transition.
    """
    phase = TRANSITIONS[state.phase, event]
    percent = state.percent
    if phase is ModelPhase.ROLLED_BACK or state.phase is ModelPhase.ROLLED_BACK:
        percent = state.start_percent
    elif event is ModelEvent.PROMOTE:
        percent = rollout.steps[-1]
    elif event in (ModelEvent.PROVEN, ModelEvent.LAST):
        percent = next_step(rollout, percent) or percent
    return msgspec.structs.replace(state, phase=phase, percent=percent, since=now, why=why, by=by, marks=None)
