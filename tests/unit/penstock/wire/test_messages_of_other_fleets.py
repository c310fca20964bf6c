"""A message, an entry in Redis or a certificate of another fleet of the same authority is rejected."""

from __future__ import annotations

import time

import pytest

from penstock.wire.fleet_binding import GRACE_S, FleetBinding
from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from penstock.wire.session import BadSignature, Purpose
from tests.support.identities import agent_id, agent_sessions, authority, introduce, sessions_of_fleet

NOW = time.time()
HERE = agent_sessions("eu")
STAGING = FleetBinding("/staging/")
UPGRADING = FleetBinding(bound_from=NOW + 60.0)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_message_of_a_fleet_with_another_prefix_is_rejected(purpose: Purpose) -> None:
    staging = sessions_of_fleet(agent_id("us"), STAGING)
    for sender, receiver in ((staging, HERE), (HERE, staging)):
        token = introduce(sender, receiver).seal(purpose, b"payload")
        with pytest.raises(BadSignature, match="is not for the fleet with prefix /"):
            receiver.open(purpose, token, NOW)


def test_a_message_of_the_earlier_form_is_rejected() -> None:
    token = introduce(sessions_of_fleet(agent_id("us"), UPGRADING), HERE).seal(Purpose.REPORT, b"payload")
    with pytest.raises(BadSignature):
        HERE.open(Purpose.REPORT, token, NOW)


@pytest.mark.parametrize("role", ProcessRole)
def test_a_certificate_of_a_fleet_with_another_name_is_rejected(role: ProcessRole) -> None:
    id_ = SpiffeId("test", role, "a", "us" if role is ProcessRole.AGENT else "")
    certificate = sessions_of_fleet(id_, name="staging").identity.peer.certificate
    with pytest.raises(BadIdentity, match=r"belongs to another fleet of the same authority .* --fleet test"):
        HERE.identity.trust.verify(certificate, NOW, tuple(ProcessRole))
    with pytest.raises(BadIdentity):
        HERE.introduce(certificate, NOW)


def test_processes_understand_each_other_throughout_an_upgrade() -> None:
    """Every pair of processes that were switched at slightly different times."""
    bindings = [FleetBinding(bound_from=NOW) for _ in range(2)]
    first, second = (
        sessions_of_fleet(agent_id(region), binding) for region, binding in zip(("eu", "us"), bindings, strict=True)
    )

    def talk() -> None:
        for sender, receiver in ((first, second), (second, first)):
            token = introduce(sender, receiver).seal(Purpose.PROBE, b"payload")
            assert receiver.open(Purpose.PROBE, token, NOW)[0] == b"payload"

    for times in ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (GRACE_S + 1.0, 1.0), (GRACE_S + 1.0, GRACE_S + 1.0)):
        for binding, after_s in zip(bindings, times, strict=True):
            binding.advance(NOW + after_s)
        talk()
    assert introduce(first, HERE).seal(Purpose.PROBE, b"")
    late = introduce(sessions_of_fleet(agent_id("us"), UPGRADING), first).seal(Purpose.PROBE, b"payload")
    with pytest.raises(BadSignature):
        first.open(Purpose.PROBE, late, NOW)


def test_processes_of_the_earlier_release_are_understood_until_the_end_of_the_upgrade() -> None:
    earlier = sessions_of_fleet(agent_id("us"), FleetBinding("/any/", 2e10))  # signs and accepts the earlier form
    upgraded = sessions_of_fleet(agent_id("eu"), UPGRADING)
    for sender, receiver in ((earlier, upgraded), (upgraded, earlier)):
        token = introduce(sender, receiver).seal(Purpose.ROUTE, b"payload")
        assert receiver.open(Purpose.ROUTE, token, NOW)[0] == b"payload"


def _region_key(binding: FleetBinding) -> RegionKey:
    return RegionKey(RegionKeys(bytes(KEY_BYTES), binding=binding), "eu")


def test_an_entry_in_redis_counts_in_its_fleet_alone() -> None:
    production, staging, upgrading = _region_key(FleetBinding()), _region_key(STAGING), _region_key(UPGRADING)
    assert production.open(production.seal(b"load")) == b"load"
    assert upgrading.open(production.seal(b"load")) == b"load"
    for sealed in (staging.seal(b"load"), upgrading.seal(b"load")):
        with pytest.raises(BadSignature):
            production.open(sealed)


def test_the_regions_of_the_fleets_of_an_authority_have_different_keys() -> None:
    made = authority()
    assert made.region_key("eu") == made.region_key("eu", made.fleet)
    assert len({made.region_key("eu"), made.region_key("eu", "staging"), made.region_key("us", "staging")}) == 3
