"""A message, an entry in Redis or a certificate of another fleet of the same authority is rejected."""

from __future__ import annotations

import time

import pytest

from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId
from penstock.wire.peer_keys import BadSignature, Purpose
from penstock.wire.region_key import RegionKey, RegionKeys
from tests.support.identities import agent_id, agent_keyring, authority, introduce, keyring_of_fleet

KEY_BYTES = 32
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = time.time()
HERE = agent_keyring("eu")
STAGING = "/staging/"


@pytest.mark.parametrize("purpose", Purpose)
def test_a_message_of_a_fleet_with_another_prefix_is_rejected(purpose: Purpose) -> None:
    staging = keyring_of_fleet(agent_id("us"), STAGING)
    for sender, receiver in ((staging, HERE), (HERE, staging)):
        token = introduce(sender, receiver).seal(purpose, b"payload")
        with pytest.raises(BadSignature, match="is not for the fleet with prefix /"):
            receiver.open(purpose, token, NOW)


@pytest.mark.parametrize("role", ProcessRole)
def test_a_certificate_of_a_fleet_with_another_name_is_rejected(role: ProcessRole) -> None:
    id_ = SpiffeId("test", role, "a", "us" if role is ProcessRole.AGENT else "")
    certificate = keyring_of_fleet(id_, name="staging").identity.peer.certificate
    with pytest.raises(BadIdentity, match=r"belongs to another fleet of the same authority .* --fleet test"):
        HERE.identity.trust.verify(certificate, NOW, tuple(ProcessRole))
    with pytest.raises(BadIdentity):
        HERE.introduce(certificate, NOW)


def test_an_entry_in_redis_counts_in_its_fleet_alone() -> None:
    production, staging = (
        RegionKey(RegionKeys(bytes(KEY_BYTES), prefix=each), "eu") for each in ("/penstock/", STAGING)
    )
    assert production.open(production.seal(b"load")) == b"load"
    with pytest.raises(BadSignature):
        production.open(staging.seal(b"load"))


def test_the_regions_of_the_fleets_of_an_authority_have_different_keys() -> None:
    made = authority()
    assert made.region_key("eu") == made.region_key("eu", made.fleet)
    assert len({made.region_key("eu"), made.region_key("eu", "staging"), made.region_key("us", "staging")}) == 3
