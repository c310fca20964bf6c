"""Who leads, as one control plane believes it: a state machine as a table; what the table lacks is an error.

Safety does not rest on the belief. Every write of a leader is fenced by the revision at which its leader key was made
(Kleppmann, "How to do distributed locking", 2016), so a late one does nothing. The belief is about not trying: a leader
steps down by its own clock before the store would let another one in.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

LEASE_TTL_S = 2
"""How long (s) after a leader's last sign of life another may take over; etcd's default election timeout allows no
less."""

RENEW_S = LEASE_TTL_S / 3
"""Time (s) between two renewals: two may fail."""

PROOF_MARGIN_S = 0.25
"""How much (s) before the lease could expire at the store a leader that cannot renew it stops leading."""


class Role(StrEnum):
    """What a control plane is."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ElectionEvent(StrEnum):
    """What can happen to it."""

    VACANT = "vacant"
    """Nobody holds the leader key."""
    WON = "won"
    """Our leader key was made."""
    LOST = "lost"
    """Another's was there first."""
    UNKNOWN = "unknown"
    """The store did not answer; a key of ours that may be there dies with a lease that nobody renews."""
    RENEWED = "renewed"
    UNPROVEN = "unproven"
    """The lease could not be renewed in time, so it may have expired."""
    EXPIRED = "expired"
    """The store says that the lease is gone."""
    FENCED = "fenced"
    """A write found that the leader key is no longer ours."""
    RESIGNED = "resigned"


_R, _E = Role, ElectionEvent

TRANSITIONS: dict[tuple[Role, ElectionEvent], Role] = {
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
    _E.VACANT: "nobody leads, so this one stands for election",
    _E.WON: "made the leader key first",
    _E.LOST: "another made the leader key first",
    _E.UNKNOWN: "the store did not answer the campaign",
    _E.RENEWED: "the lease is renewed",
    _E.UNPROVEN: "the lease could not be renewed in time",
    _E.EXPIRED: "the store says that the lease is gone",
    _E.FENCED: "a write found that the leader key is another's",
    _E.RESIGNED: "resigned",
}


class Leadership(msgspec.Struct, frozen=True):
    """One control plane's belief about itself; `transition` returns the next one."""

    role: Role = Role.FOLLOWER
    epoch: int = 0
    """The fencing epoch: revision at which our leader key was made; 0 unless leading."""
    proven_until: float = 0.0
    """Our clock (s) at which the lease may have expired."""
    since: float = 0.0
    """Our clock (s) when the role was entered."""
    why: str = "just started"
    """A sentence for people: what made it so."""

    def epoch_at(self, now: float) -> int | None:
        """The epoch to write with now; None where this control plane must not write."""
        return self.epoch if self.role is Role.LEADER and now < self.proven_until else None


def transition(
    belief: Leadership, event: ElectionEvent, now: float, *, epoch: int = 0, sent_at: float = 0.0
) -> Leadership:
    """The belief after an event.

    Args:
        now: our clock, in seconds.
        epoch: with WON, the revision at which the leader key was made.
        sent_at: with WON and RENEWED, our clock before the lease was asked for, in seconds: it lives at least
            LEASE_TTL_S from then, however long the answer took.

    Raises:
        KeyError: the table has no such transition, which is a defect in the caller.
    """
    role = TRANSITIONS[belief.role, event]
    leads = role is Role.LEADER
    return Leadership(
        role=role,
        epoch=(epoch or belief.epoch) if leads else 0,
        proven_until=sent_at + LEASE_TTL_S - PROOF_MARGIN_S if leads else 0.0,
        since=belief.since if role is belief.role else now,
        why=WHY[event] if event is not _E.RENEWED else belief.why,
    )
