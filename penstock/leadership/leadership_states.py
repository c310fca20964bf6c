"""Leadership of one control plane as a table of state transitions; a transition that the table lacks is an error.

Safety does not depend on this state. Every write of a leader is fenced by the create revision of its leader key
(Kleppmann, "How to do distributed locking", 2016), so a late write has no effect. The state avoids futile writes: a
leader steps down by its own clock before the store lets another control plane take over.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

MIN_LEASE_TTL_S = 2
"""Shortest time to live (s) of the leader's lease: etcd's default election timeout does not permit less."""

RENEW_S = MIN_LEASE_TTL_S / 3
"""Interval (s) between two renewals: even with the shortest lease, two renewals may fail."""

PROOF_MARGIN_S = 0.25
"""Time (s) before the earliest expiry of its lease at which a leader that cannot renew the lease steps down."""


class LeadershipRole(StrEnum):
    """Role of a control plane."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ElectionEvent(StrEnum):
    """Event of a leader election."""

    VACANT = "vacant"
    """The leader key does not exist."""
    WON = "won"
    """This control plane created the leader key."""
    LOST = "lost"
    """Another control plane created the leader key first."""
    UNKNOWN = "unknown"
    """The store did not respond; a leader key that was created expires with its lease, which is not renewed."""
    RENEWED = "renewed"
    UNPROVEN = "unproven"
    """The lease could not be renewed in time, so it may have expired."""
    EXPIRED = "expired"
    """The store reports that the lease has expired."""
    FENCED = "fenced"
    """A fenced write failed: the leader key belongs to another control plane."""
    RESIGNED = "resigned"


_R, _E = LeadershipRole, ElectionEvent

TRANSITIONS: dict[tuple[LeadershipRole, ElectionEvent], LeadershipRole] = {
    (_R.FOLLOWER, _E.VACANT): _R.CANDIDATE,
    (_R.FOLLOWER, _E.RESIGNED): _R.FOLLOWER,
    (_R.CANDIDATE, _E.WON): _R.LEADER,
    (_R.CANDIDATE, _E.LOST): _R.FOLLOWER,
    (_R.CANDIDATE, _E.UNKNOWN): _R.FOLLOWER,
    (_R.CANDIDATE, _E.RESIGNED): _R.FOLLOWER,
    (_R.LEADER, _E.RENEWED): _R.LEADER,
    (_R.LEADER, _E.UNPROVEN): _R.FOLLOWER,
    (_R.LEADER, _E.EXPIRED): _R.FOLLOWER,
    (_R.LEADER, _E.FENCED): _R.FOLLOWER,
    (_R.LEADER, _E.RESIGNED): _R.FOLLOWER,
}

WHY = {
    _E.VACANT: "there is no leader, so this control plane campaigns",
    _E.WON: "made the leader key first",
    _E.LOST: "another made the leader key first",
    _E.UNKNOWN: "the store did not answer the election",
    _E.RENEWED: "the lease is renewed",
    _E.UNPROVEN: "the lease could not be renewed in time",
    _E.EXPIRED: "the lease has expired",
    _E.FENCED: "a fenced write failed: another control plane leads",
    _E.RESIGNED: "resigned",
}


class Leadership(msgspec.Struct, frozen=True):
    """Leadership state of one control plane; `transition` returns the next one."""

    role: LeadershipRole = LeadershipRole.FOLLOWER
    epoch: int = 0
    """The fencing epoch: the revision at which the leader key was created; 0 unless leading."""
    proven_until: float = 0.0
    """Local clock (s) from which the lease may have expired."""
    since: float = 0.0
    """Local clock (s) when the role was entered."""
    why: str = "just started"
    """Reason of the last transition, for operators."""

    def epoch_at(self, now: float) -> int | None:
        """Return the epoch to write with now; None if this control plane must not write."""
        return self.epoch if self.role is LeadershipRole.LEADER and now < self.proven_until else None


def transition(
    state: Leadership,
    event: ElectionEvent,
    now: float,
    *,
    epoch: int = 0,
    sent_at: float = 0.0,
    lease_ttl_s: float = MIN_LEASE_TTL_S,
) -> Leadership:
    """Return the state after an event.

    Args:
        now: local clock (s).
        epoch: with WON, the revision at which the leader key was created.
        sent_at: with WON and RENEWED, local clock (s) before the lease was requested: the lease is valid for at least
            `lease_ttl_s` from then, however long the response took.
        lease_ttl_s: time to live (s) of the lease.

    Raises:
        KeyError: the table has no such transition, which is a defect in the caller.
    """
    role = TRANSITIONS[state.role, event]
    leads = role is LeadershipRole.LEADER
    return Leadership(
        role=role,
        epoch=(epoch or state.epoch) if leads else 0,
        proven_until=sent_at + lease_ttl_s - PROOF_MARGIN_S if leads else 0.0,
        since=state.since if role is state.role else now,
        why=WHY[event] if event is not _E.RENEWED else state.why,
    )
