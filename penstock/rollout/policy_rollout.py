"""The rollout of a policy as a table of state transitions; a transition that the table lacks is an error.

A candidate is first planned in shadow, then applied by the canary regions, then by all regions while it is still
judged, and finally becomes the stable policy: the policy that regions outside the canary apply, and to which every
region returns in one step. The state alone determines which region applies which policy, so a new leader continues
where the former one stopped.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.policy.provenance import Provenance
from penstock.rollout.objective_analysis import ObjectiveCounts

MAX_DISMISSED = 50
"""Maximum number of remembered digests that are not rolled out again automatically."""


class Phase(StrEnum):
    """Phase of a rollout."""

    SHADOW = "shadow"
    """Both plans are computed; only the stable policy's plan is published."""
    SHADOW_HELD = "shadow_held"
    """As SHADOW, until an operator resumes, promotes or rolls back."""
    CANARY = "canary"
    """The canary regions apply the candidate."""
    CANARY_HELD = "canary_held"
    """The canary regions keep applying the candidate; no other region follows until an operator decides."""
    WATCH = "watch"
    """Every region applies the candidate, and it is still judged."""
    DONE = "done"
    """The candidate is the stable policy."""
    ROLLED_BACK = "rolled_back"
    """Every region applies the stable policy again."""
    SUPERSEDED = "superseded"
    """The source offered another policy before this rollout was complete."""


class RolloutEvent(StrEnum):
    """Event of a rollout."""

    AGREED = "agreed"
    """The candidate's plan moves no more demand than the rules allow."""
    DIFFERED = "differed"
    """The candidate's plan moves more demand than the rules allow: an operator must decide."""
    PROVEN = "proven"
    """The canary regions had no regression for long enough."""
    SETTLED = "settled"
    """The whole fleet had no regression for long enough."""
    REGRESSED = "regressed"
    """The failure rate or latency increased, or a service objective is missed that was met before or is met
    elsewhere."""
    REFUSED = "refused"
    """An agent rejects the candidate."""
    UNACKNOWLEDGED = "unacknowledged"
    """Agents that report did not accept the candidate in time."""
    ABSENT = "absent"
    """No agent of a canary region reports, so the candidate cannot be tried there."""
    HALT = "halt"
    RESUME = "resume"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"
    SUPERSEDE = "supersede"


_P, _E = Phase, RolloutEvent

TRANSITIONS: dict[tuple[Phase, RolloutEvent], Phase] = {
    (_P.SHADOW, _E.AGREED): _P.CANARY,
    (_P.SHADOW, _E.DIFFERED): _P.SHADOW_HELD,
    (_P.SHADOW, _E.HALT): _P.SHADOW_HELD,
    (_P.SHADOW, _E.PROMOTE): _P.WATCH,
    (_P.SHADOW, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.SHADOW, _E.SUPERSEDE): _P.SUPERSEDED,
    (_P.SHADOW_HELD, _E.RESUME): _P.CANARY,
    (_P.SHADOW_HELD, _E.PROMOTE): _P.WATCH,
    (_P.SHADOW_HELD, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.SHADOW_HELD, _E.SUPERSEDE): _P.SUPERSEDED,
    (_P.CANARY, _E.PROVEN): _P.WATCH,
    (_P.CANARY, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.CANARY, _E.REFUSED): _P.ROLLED_BACK,
    (_P.CANARY, _E.UNACKNOWLEDGED): _P.ROLLED_BACK,
    (_P.CANARY, _E.ABSENT): _P.CANARY_HELD,
    (_P.CANARY, _E.HALT): _P.CANARY_HELD,
    (_P.CANARY, _E.PROMOTE): _P.WATCH,
    (_P.CANARY, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.CANARY, _E.SUPERSEDE): _P.SUPERSEDED,
    (_P.CANARY_HELD, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.CANARY_HELD, _E.REFUSED): _P.ROLLED_BACK,
    (_P.CANARY_HELD, _E.RESUME): _P.CANARY,
    (_P.CANARY_HELD, _E.PROMOTE): _P.WATCH,
    (_P.CANARY_HELD, _E.ROLL_BACK): _P.ROLLED_BACK,
    (_P.CANARY_HELD, _E.SUPERSEDE): _P.SUPERSEDED,
    (_P.WATCH, _E.SETTLED): _P.DONE,
    (_P.WATCH, _E.REGRESSED): _P.ROLLED_BACK,
    (_P.WATCH, _E.REFUSED): _P.ROLLED_BACK,
    (_P.WATCH, _E.ROLL_BACK): _P.ROLLED_BACK,
}

OPERATOR_EVENTS = (RolloutEvent.HALT, RolloutEvent.RESUME, RolloutEvent.PROMOTE, RolloutEvent.ROLL_BACK)
"""The events that operators cause."""

FINAL_PHASES = frozenset({Phase.DONE, Phase.ROLLED_BACK, Phase.SUPERSEDED})
IN_SHADOW = frozenset({Phase.SHADOW, Phase.SHADOW_HELD})
IN_CANARY = frozenset({Phase.CANARY, Phase.CANARY_HELD})

_RETURNED = "the policy source returned to the stable policy"

_AT_FAULT = frozenset({RolloutEvent.REGRESSED, RolloutEvent.REFUSED, RolloutEvent.UNACKNOWLEDGED})
"""Events after which the candidate is not rolled out again automatically."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent's counters at one moment."""

    epoch: int
    """Epoch of the agent: a restarted agent counts from zero."""
    request_counts: RequestCounts
    objectives: tuple[ObjectiveCounts, ...] = ()


class Rollout(msgspec.Struct, frozen=True):
    """State of one rollout; `transition` returns the next one. Times are by the leaders' clocks, in seconds."""

    number: int
    """Number of the rollout, which grows by one with every rollout."""
    candidate: str
    """Digest of the policy that is rolled out."""
    stable: str
    """Digest of the policy that every region returns to."""
    phase: Phase
    since: float
    """Time at which the phase was entered."""
    began_at: float
    why: str
    """Reason of the last transition, for operators."""
    by: str = ""
    """Name of the operator who caused the last transition; empty for automatic transitions."""
    provenance: Provenance | None = None
    """Commit of the candidate; None for a policy from a folder."""
    stable_provenance: Provenance | None = None
    canary: tuple[str, ...] = ()
    """Regions that apply the candidate before the others."""
    moved_share: float | None = None
    """Share (0-1) of all demand that the candidate's plan serves elsewhere, by the last comparison in shadow."""
    marks: dict[str, Mark] | None = None
    """Agents' counters at the beginning of the phase, by `region/agent`; None until a leader has received reports."""
    shadow_marks: dict[str, Mark] | None = None
    """Agents' counters at the beginning of the shadow phase, until `counts_before` is computed from them."""
    counts_before: dict[str, RequestCounts] = {}
    """Results of each region's requests during the shadow phase: the baseline of regressions."""
    objectives_before: dict[str, tuple[ObjectiveCounts, ...]] = {}
    """Attainment of each region's service objectives during the shadow phase."""
    dismissed: tuple[str, ...] = ()
    """Digests that are not rolled out again automatically: an operator rolled them back or replaced them, or they
    regressed, were rejected by an agent, or were not acknowledged in time."""
    ignored: str = ""
    """Digest that the source offered when an operator chose another policy; ignored until the source offers a new
    one."""

    @property
    def is_over(self) -> bool:
        """Whether the rollout is in a final phase."""
        return self.phase in FINAL_PHASES

    @property
    def in_force(self) -> str:
        """Digest of the policy that every region outside the canary is to apply."""
        return self.candidate if self.phase is Phase.WATCH else self.stable

    @property
    def provenance_in_force(self) -> Provenance | None:
        """Commit of the policy in force."""
        return self.provenance if self.phase is Phase.WATCH else self.stable_provenance

    @property
    def permitted(self) -> tuple[RolloutEvent, ...]:
        """The events that an operator can cause in this phase."""
        return tuple(event for event in OPERATOR_EVENTS if (self.phase, event) in TRANSITIONS)

    def digest_for(self, region: str) -> str:
        """Returns the digest of the policy that a region is to apply."""
        return self.candidate if self.phase in IN_CANARY and region in self.canary else self.in_force


def first_rollout(digest: str, provenance: Provenance | None, now: float) -> Rollout:
    """Returns the rollout of a fleet's first policy, which is in force at once since there is nothing to compare
    with."""
    why = "the first policy of this fleet"
    return Rollout(1, digest, digest, Phase.DONE, now, now, why, "", provenance, provenance)


class OfferedPolicy(msgspec.Struct, frozen=True):
    """A policy to roll out: one that the policy source offers, or that an operator chose."""

    digest: str
    provenance: Provenance | None = None
    """Commit of the policy; None for a policy from a folder."""
    by: str = ""
    """Name of the operator; empty for the policy source."""
    why: str = "the policy source offers it"
    instead_of: str = ""
    """Digest that the source offered when an operator chose this policy."""


def begin(before: Rollout, offered: OfferedPolicy, canary: tuple[str, ...], now: float) -> Rollout:
    """Returns a new rollout after one that is over: of the policy that the source offers or an operator applies."""
    return Rollout(
        number=before.number + 1,
        candidate=offered.digest,
        stable=before.stable,
        phase=Phase.SHADOW,
        since=now,
        began_at=now,
        why=offered.why,
        by=offered.by,
        provenance=offered.provenance,
        stable_provenance=before.stable_provenance,
        canary=canary,
        dismissed=tuple(dismissed for dismissed in before.dismissed if dismissed != offered.digest),
        ignored=offered.instead_of,
    )


def restore(before: Rollout, offered: OfferedPolicy, now: float) -> Rollout:
    """Returns a rollout that applies a policy in all regions at once, for an operator; the replaced policies are not
    rolled out again automatically."""
    kept = dict.fromkeys((*before.dismissed, before.stable, before.candidate))
    kept.pop(offered.digest, None)
    return msgspec.structs.replace(
        begin(before, offered, (), now),
        stable=offered.digest,
        phase=Phase.DONE,
        stable_provenance=offered.provenance,
        dismissed=tuple(kept)[-MAX_DISMISSED:],
    )


def transition(rollout: Rollout, event: RolloutEvent, now: float, *, why: str, by: str = "") -> Rollout:
    """Returns the rollout after an event.

    Raises:
        KeyError: the table has no such transition.
    """
    phase = TRANSITIONS[rollout.phase, event]
    after = msgspec.structs.replace(rollout, phase=phase, since=now, why=why, by=by)
    if phase is Phase.DONE:
        after = msgspec.structs.replace(after, stable=rollout.candidate, stable_provenance=rollout.provenance)
    if event in _AT_FAULT or (event is RolloutEvent.ROLL_BACK and by):
        dismissed = (*rollout.dismissed, rollout.candidate)
        after = msgspec.structs.replace(after, dismissed=dismissed[-MAX_DISMISSED:])
    if phase in FINAL_PHASES:
        return msgspec.structs.replace(after, marks=None, shadow_marks=None)
    if phase in IN_SHADOW or phase is Phase.CANARY_HELD:
        return after
    shadow_marks = rollout.marks if rollout.phase in IN_SHADOW else rollout.shadow_marks
    return msgspec.structs.replace(after, marks=None, shadow_marks=shadow_marks)


def on_source_policy(rollout: Rollout, digest: str, now: float) -> tuple[Rollout, bool]:
    """Returns the rollout after the source offered a policy, and whether a new rollout must `begin`.

    A rollout completes its watch phase before the next rollout begins; only a return to the stable policy does not
    wait.
    """
    put_away = digest == rollout.ignored or digest in rollout.dismissed
    if rollout.is_over:
        return rollout, digest != rollout.stable and not put_away
    if digest == rollout.candidate or put_away:
        return rollout, False
    back = digest == rollout.stable
    if rollout.phase is Phase.WATCH:
        if not back:
            return rollout, False
        return transition(rollout, RolloutEvent.ROLL_BACK, now, why=_RETURNED), False
    why = _RETURNED if back else f"the policy source offers {digest[:12]}"
    return transition(rollout, RolloutEvent.SUPERSEDE, now, why=why), not back
