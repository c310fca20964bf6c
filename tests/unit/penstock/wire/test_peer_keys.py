"""A message between two processes verifies only for its sender, its receiver and its purpose."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.identity import Identity
from penstock.wire.peer_keys import BadSignature, Purpose
from tests.support.identities import (
    HOSTS,
    YEAR_S,
    agent_id,
    agent_keyring,
    authority,
    control_plane_keyring,
    introduce,
    trust,
)

NOW = time.time()


@given(st.binary(max_size=300), st.sampled_from(Purpose))
def test_a_token_opens_at_its_receiver_only(payload: bytes, purpose: Purpose) -> None:
    sender, receiver, third = agent_keyring("eu"), control_plane_keyring(), agent_keyring("us")
    token = introduce(sender, receiver).seal(purpose, payload)
    introduce(sender, third)
    opened, peer_keys = receiver.open(purpose, token, NOW)
    assert opened == payload
    assert peer_keys.peer.id == agent_id("eu")
    with pytest.raises(BadSignature):
        third.open(purpose, token, NOW)


def test_a_token_serves_one_purpose_and_one_direction() -> None:
    sender, receiver = agent_keyring("eu"), agent_keyring("us")
    introduce(receiver, sender)
    token = introduce(sender, receiver).seal(Purpose.ROUTE, b"payload")
    with pytest.raises(BadSignature, match="does not match"):
        receiver.open(Purpose.PROBE, token, NOW)
    reflected = receiver.identity.peer.fingerprint[:32] + token[32:]
    with pytest.raises(BadSignature, match="does not match"):
        sender.open(Purpose.ROUTE, reflected, NOW)


def test_a_sender_whose_certificate_was_not_received_is_unknown() -> None:
    sender, receiver = agent_keyring("eu"), agent_keyring("us")
    token = sender.keys_with(receiver.identity.peer.certificate, NOW).seal(Purpose.ROUTE, b"")
    with pytest.raises(BadSignature, match="was not received"):
        receiver.open(Purpose.ROUTE, token, NOW)


def test_an_expired_sender_is_rejected() -> None:
    sender, receiver = agent_keyring("eu"), agent_keyring("us")
    token = introduce(sender, receiver).seal(Purpose.ROUTE, b"")
    with pytest.raises(BadSignature, match="is valid from"):
        receiver.open(Purpose.ROUTE, token, NOW + 2 * YEAR_S)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b", "a.b.c.d", "a" * 9000])
def test_malformed_tokens_are_rejected(token: str) -> None:
    sender, receiver = agent_keyring("eu"), agent_keyring("us")
    introduce(sender, receiver)
    with pytest.raises(BadSignature):
        receiver.open(Purpose.ROUTE, token, NOW)


@given(st.integers(0, 10_000), st.integers(1, 127))
def test_no_changed_token_opens(position: int, change: int) -> None:
    sender, receiver = agent_keyring("eu"), agent_keyring("us")
    token = introduce(sender, receiver).seal(Purpose.ROUTE, b"payload!!")
    at = position % len(token)
    changed = token[:at] + chr((ord(token[at]) + change) % 128) + token[at + 1 :]
    with pytest.raises(BadSignature):
        receiver.open(Purpose.ROUTE, changed, NOW)


def test_messages_to_the_certificate_before_a_renewal_are_accepted() -> None:
    sender, receiver = agent_keyring("eu"), agent_keyring("us")
    to_receiver = introduce(sender, receiver)
    before = to_receiver.seal(Purpose.ROUTE, b"before")
    receiver.use(Identity(*authority().issue(agent_id("us"), HOSTS, NOW, YEAR_S), trust(), NOW))
    after = introduce(sender, receiver).seal(Purpose.ROUTE, b"after")
    assert receiver.open(Purpose.ROUTE, before, NOW)[0] == b"before"
    assert receiver.open(Purpose.ROUTE, after, NOW)[0] == b"after"
