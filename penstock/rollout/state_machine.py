"""How a new policy reaches the fleet: a state machine as a table; what the table lacks is an error.

A candidate is planned with in shadow first, then obeyed by the canary regions, then by all while it is still watched,
and only then is it the stable policy: what regions obey that try no candidate, and what everything goes back to in one
step. Who obeys what follows from the state alone, so whoever leads next goes on where the last one was.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.fleet.request_counts import RequestCounts
from penstock.policy.provenance import Provenance
from penstock.rollout.objective_evidence import Kept

MAX_DISMISSED = 50
"""Policies that are remembered as not to be begun again by themselves."""


class Phase(StrEnum):
    """How far a candidate has come."""

    SHADOW = "shadow"
    """Both plans are made, and only the stable policy's is published."""
    SHADOW_HELD = "shadow_held"
    """As in shadow, until a person says how to go on."""
    CANARY = "canary"
    """The canary regions obey the candidate."""
    CANARY_HELD = "canary_held"
    """They go on obeying it, and nobody else follows until a person says so."""
    WATCH = "watch"
    """Every region obeys it, and it is still judged."""
    DONE = "done"
    """It is the stable policy now."""
    ROLLED_BACK = "rolled_back"
    """Every region obeys the stable policy again."""
    SUPERSEDED = "superseded"
    """The source had another policy before this one was through."""


class Event(StrEnum):
    """What can happen to a rollout."""

    AGREED = "agreed"
    """The shadow's plan moves no more demand than rules allow."""
    DIFFERED = "differed"
    """It moves more: a person must look."""
    PROVEN = "proven"
    """The canary regions have done well for long enough."""
    SETTLED = "settled"
    """So has the fleet."""
    REGRESSED = "regressed"
    """More requests fail, or answers come later, than before; or a service objective is broken that was kept."""
    REFUSED = "refused"
    """An agent refuses it."""
    UNACKNOWLEDGED = "unacknowledged"
    """Agents that are heard did not take it in time."""
    ABSENT = "absent"
    """No agent of a canary region is heard, so nobody can try it."""
    HALT = "halt"
    RESUME = "resume"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"
    SUPERSEDE = "supersede"


_P, _E = Phase, Event

TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
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

OVER = frozenset({Phase.DONE, Phase.ROLLED_BACK, Phase.SUPERSEDED})
IN_SHADOW = frozenset({Phase.SHADOW, Phase.SHADOW_HELD})
IN_CANARY = frozenset({Phase.CANARY, Phase.CANARY_HELD})

_AT_FAULT = frozenset({Event.REGRESSED, Event.REFUSED, Event.UNACKNOWLEDGED})
"""Events after which the candidate is not begun again by itself."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent's counters at some moment."""

    epoch: int
    """Of the agent: a restarted one counts from nothing."""
    answers: RequestCounts
    kept: tuple[Kept, ...] = ()
    """Service objectives."""


class Rollout(msgspec.Struct, frozen=True):
    """One candidate on its way; `follow` returns the next state. Times are of the leaders' clocks, in seconds."""

    number: int
    """Grows by one with every rollout."""
    candidate: str
    """Digest of the policy that is rolled out."""
    stable: str
    """Digest of the one that every region goes back to."""
    phase: Phase
    since: float
    """When the phase was entered."""
    began_at: float
    why: str
    """A sentence for people: what made the phase so."""
    by: str = ""
    """Who did, where a person did."""
    provenance: Provenance | None = None
    """Of the candidate."""
    stable_provenance: Provenance | None = None
    canary: tuple[str, ...] = ()
    """Regions that try it before the others."""
    moved_share: float | None = None
    """How much (0-1) of all demand the candidate's plan serves elsewhere, as the shadow showed last."""
    marks: dict[str, Mark] | None = None
    """Agents' counters when the phase was entered, by `region/agent`; None until somebody who hears them leads."""
    earlier: dict[str, Mark] | None = None
    """Those when the shadow began, until `before` is made of them."""
    before: dict[str, RequestCounts] = {}
    """How each region's requests ended while it was in shadow: what regressions are measured against."""
    kept_before: dict[str, tuple[Kept, ...]] = {}
    """How each region's service objectives were kept meanwhile."""
    dismissed: tuple[str, ...] = ()
    """Policies that are not begun by themselves again: a person has rolled them back, or they were at fault."""
    ignored: str = ""
    """What the source had when a person chose another policy: it does not undo the choice, until it has a new one."""

    @property
    def is_over(self) -> bool:
        """Whether nothing happens to it any more."""
        return self.phase in OVER

    def digest_for(self, region: str) -> str:
        """The policy that a region is to obey."""
        tries_it = self.phase in IN_CANARY and region in self.canary
        return self.candidate if tries_it or self.phase is Phase.WATCH else self.stable


def first(digest: str, provenance: Provenance | None, now: float) -> Rollout:
    """The first policy of a fleet: there is nothing to compare it with, so it is in force at once."""
    why = "the first policy of this fleet"
    return Rollout(1, digest, digest, Phase.DONE, now, now, why, "", provenance, provenance)


def begin(
    before: Rollout,
    digest: str,
    provenance: Provenance | None,
    canary: tuple[str, ...],
    now: float,
    *,
    why: str = "the source has it",
    by: str = "",
    ignored: str = "",
) -> Rollout:
    """A new rollout, after one that is over: of what the source has, or because a person says so."""
    return Rollout(
        number=before.number + 1,
        candidate=digest,
        stable=before.stable,
        phase=Phase.SHADOW,
        since=now,
        began_at=now,
        why=why,
        by=by,
        provenance=provenance,
        stable_provenance=before.stable_provenance,
        canary=canary,
        dismissed=tuple(one for one in before.dismissed if one != digest),
        ignored=ignored,
    )


def restore(
    before: Rollout, digest: str, provenance: Provenance | None, now: float, *, why: str, by: str, ignored: str
) -> Rollout:
    """Back to a policy everywhere at once, because a person says so; what was obeyed is not begun by itself again."""
    kept = dict.fromkeys((*before.dismissed, before.stable, before.candidate))
    kept.pop(digest, None)
    return Rollout(
        number=before.number + 1,
        candidate=digest,
        stable=digest,
        phase=Phase.DONE,
        since=now,
        began_at=now,
        why=why,
        by=by,
        provenance=provenance,
        stable_provenance=provenance,
        dismissed=tuple(kept)[-MAX_DISMISSED:],
        ignored=ignored,
    )


def follow(rollout: Rollout, event: Event, now: float, *, why: str, by: str = "") -> Rollout:
    """The rollout after an event.

    Raises:
        KeyError: the table has no such transition.
    """
    phase = TRANSITIONS[rollout.phase, event]
    after = msgspec.structs.replace(rollout, phase=phase, since=now, why=why, by=by)
    if phase is Phase.DONE:
        after = msgspec.structs.replace(after, stable=rollout.candidate, stable_provenance=rollout.provenance)
    if event in _AT_FAULT or (event is Event.ROLL_BACK and by):
        dismissed = (*rollout.dismissed, rollout.candidate)
        after = msgspec.structs.replace(after, dismissed=dismissed[-MAX_DISMISSED:])
    if phase in OVER:
        return msgspec.structs.replace(after, marks=None, earlier=None)
    if phase in IN_SHADOW or phase is Phase.CANARY_HELD:
        return after
    earlier = rollout.marks if rollout.phase in IN_SHADOW else rollout.earlier
    return msgspec.structs.replace(after, marks=None, earlier=earlier)


def offered(rollout: Rollout, digest: str, now: float) -> tuple[Rollout, bool]:
    """The source has a policy: what becomes of the rollout, and whether a new one is to `begin`.

    A policy that everybody obeys already is watched to the end before the next one; only going back does not wait.
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
        return follow(rollout, Event.ROLL_BACK, now, why="the source went back"), False
    why = "the source went back" if back else f"the source has {digest[:12]} now"
    return follow(rollout, Event.SUPERSEDE, now, why=why), not back
