"""When an anycast prefix is announced: at once withdrawn with its agent, announced again after a damping time.

Each withdrawal of an announced prefix doubles the time for which the agent has to be ready before the next one; a time
without a withdrawal halves it again. Routers of other networks therefore do not suppress the prefix of a flapping agent
(route flap damping, RFC 2439).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

MAX_DOUBLINGS = 16
"""Maximum number of withdrawals that count."""


class AnnouncementState(StrEnum):
    """The states of a prefix."""

    WITHDRAWN = "withdrawn"
    HELD = "held"
    """The agent is ready, and not yet for long enough."""
    ANNOUNCED = "announced"


class AnnouncementEvent(StrEnum):
    """What a check of the agent found."""

    READY = "ready"
    """Ready, but for less than the hold time."""
    STEADY = "steady"
    """Ready for at least the hold time."""
    MISSED = "missed"
    """No answer, for the first times in a row."""
    STOPPED = "stopped"
    """The agent states that it is not ready or drained, or did not answer several times in a row."""


_S, _E = AnnouncementState, AnnouncementEvent

TRANSITIONS: dict[tuple[AnnouncementState, AnnouncementEvent], AnnouncementState] = {
    (_S.WITHDRAWN, _E.READY): _S.HELD,
    (_S.WITHDRAWN, _E.STEADY): _S.ANNOUNCED,
    (_S.WITHDRAWN, _E.MISSED): _S.WITHDRAWN,
    (_S.WITHDRAWN, _E.STOPPED): _S.WITHDRAWN,
    (_S.HELD, _E.READY): _S.HELD,
    (_S.HELD, _E.STEADY): _S.ANNOUNCED,
    (_S.HELD, _E.MISSED): _S.WITHDRAWN,
    (_S.HELD, _E.STOPPED): _S.WITHDRAWN,
    (_S.ANNOUNCED, _E.READY): _S.ANNOUNCED,
    (_S.ANNOUNCED, _E.STEADY): _S.ANNOUNCED,
    (_S.ANNOUNCED, _E.MISSED): _S.ANNOUNCED,
    (_S.ANNOUNCED, _E.STOPPED): _S.WITHDRAWN,
}


class DampingRules(msgspec.Struct, frozen=True):
    """Times of the damping."""

    hold_s: float = 2.0
    """Time (s) of readiness before the first announcement; doubled by each withdrawal."""
    max_hold_s: float = 300.0
    forget_s: float = 60.0
    """Time (s) without a withdrawal after which one of the earlier ones is forgotten."""
    max_misses: int = 3
    """Number of unanswered checks in a row that withdraws."""


class Announcement(msgspec.Struct, frozen=True):
    """A prefix at one moment; `check` returns the next one."""

    state: AnnouncementState = AnnouncementState.WITHDRAWN
    ready_since: float | None = None
    """Time (s) since which every check found the agent ready."""
    withdrawals: int = 0
    """Withdrawals that count, of those before."""
    counted_at: float = 0.0
    """Time (s) of the last withdrawal, or of the last one that was forgotten."""
    misses: int = 0

    @property
    def is_announced(self) -> bool:
        """Whether the prefix is announced."""
        return self.state is AnnouncementState.ANNOUNCED

    def hold_s(self, rules: DampingRules) -> float:
        """Time (s) of readiness that the next announcement requires."""
        return min(rules.max_hold_s, rules.hold_s * 2.0**self.withdrawals)


def check(before: Announcement, ready: bool | None, now: float, rules: DampingRules) -> Announcement:
    """The prefix after one check of the agent.

    Args:
        ready: whether the agent states that it accepts clients; None without an answer.
        now: monotonic, in seconds.
    """
    misses = before.misses + 1 if ready is None else 0
    withdrawals, counted_at = before.withdrawals, before.counted_at
    if withdrawals and now - counted_at >= rules.forget_s:
        withdrawals, counted_at = withdrawals - 1, now
    since = None
    if ready or (ready is None and before.is_announced and misses < rules.max_misses):
        since = now if before.ready_since is None else before.ready_since
    damped = msgspec.structs.replace(before, withdrawals=withdrawals)
    state = TRANSITIONS[before.state, _event(damped, ready, misses, since, now, rules)]
    if before.is_announced and state is not AnnouncementState.ANNOUNCED:
        withdrawals, counted_at = min(withdrawals + 1, MAX_DOUBLINGS), now
    return Announcement(state, since, withdrawals, counted_at, misses)


def _event(
    before: Announcement, ready: bool | None, misses: int, since: float | None, now: float, rules: DampingRules
) -> AnnouncementEvent:
    if ready is None:
        return AnnouncementEvent.STOPPED if misses >= rules.max_misses else AnnouncementEvent.MISSED
    if not ready or since is None:
        return AnnouncementEvent.STOPPED
    return AnnouncementEvent.STEADY if now - since >= before.hold_s(rules) else AnnouncementEvent.READY
