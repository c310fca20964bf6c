"""The transition table of leadership: who may write, until when, and why."""

from __future__ import annotations

import pytest

from penstock.leadership.leadership_states import (
    RENEW_S,
    TRANSITIONS,
    WHY,
    ElectionEvent,
    Leadership,
    LeadershipRole,
    transition,
)

MIN_LEASE_TTL_S, PROOF_MARGIN_S = 2, 0.25
"""As documented, and not imported: a test fails if a tuned constant changes."""

LEADING = transition(
    transition(Leadership(), ElectionEvent.VACANT, 10.0), ElectionEvent.WON, 10.2, epoch=7, sent_at=10.1
)


def test_a_won_election_leads_under_its_epoch() -> None:
    assert (LEADING.role, LEADING.epoch_at(10.2)) == (LeadershipRole.LEADER, 7)


def test_only_a_leader_may_write() -> None:
    for belief in (Leadership(), transition(Leadership(), ElectionEvent.VACANT, 1.0)):
        assert belief.epoch_at(1.0) is None


def test_a_leader_stops_before_its_lease_can_expire_however_long_the_answer_took() -> None:
    assert LEADING.epoch_at(10.1 + MIN_LEASE_TTL_S - PROOF_MARGIN_S - 0.01) == 7
    assert LEADING.epoch_at(10.1 + MIN_LEASE_TTL_S - PROOF_MARGIN_S) is None


def test_a_renewal_extends_the_lease_from_its_sending() -> None:
    renewed = transition(LEADING, ElectionEvent.RENEWED, 11.5, sent_at=11.0)
    assert renewed.proven_until == 11.0 + MIN_LEASE_TTL_S - PROOF_MARGIN_S
    assert (renewed.epoch, renewed.since) == (7, LEADING.since)


def test_a_longer_lease_permits_longer_writes() -> None:
    renewed = transition(LEADING, ElectionEvent.RENEWED, 11.5, sent_at=11.0, lease_ttl_s=20)
    assert renewed.proven_until == 11.0 + 20 - PROOF_MARGIN_S


@pytest.mark.parametrize(
    "event", [ElectionEvent.UNPROVEN, ElectionEvent.EXPIRED, ElectionEvent.FENCED, ElectionEvent.RESIGNED]
)
def test_the_end_of_a_leadership_ends_its_epoch_at_once(event: ElectionEvent) -> None:
    after = transition(LEADING, event, 11.0)
    assert (after.role, after.epoch, after.epoch_at(11.0), after.since) == (LeadershipRole.FOLLOWER, 0, None, 11.0)
    assert after.why == WHY[event]


def test_a_transition_that_the_table_lacks_is_an_error() -> None:
    for role in LeadershipRole:
        for event in ElectionEvent:
            if (role, event) not in TRANSITIONS:
                with pytest.raises(KeyError):
                    transition(Leadership(role=role), event, 0.0)


def test_only_an_election_makes_a_leader() -> None:
    made = {
        key
        for key, role in TRANSITIONS.items()
        if role is LeadershipRole.LEADER and key[0] is not LeadershipRole.LEADER
    }
    assert made == {(LeadershipRole.CANDIDATE, ElectionEvent.WON)}


def test_every_event_has_a_log_message() -> None:
    assert WHY.keys() == set(ElectionEvent)


def test_two_failed_renewals_keep_the_leadership() -> None:
    assert 2 * RENEW_S < MIN_LEASE_TTL_S - PROOF_MARGIN_S
