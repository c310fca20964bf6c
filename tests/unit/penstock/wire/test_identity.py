"""The identity of a process in its certificate, and invalid certificates."""

from __future__ import annotations

import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.authority import Authority, make_authority
from penstock.wire.identity import BadIdentity, Identity, ProcessRole, SpiffeId, TrustBundle, has_spiffe_id
from tests.support.identities import FLEET, HOSTS, YEAR_S, agent_id, authority, control_plane_id, identity, trust

NOW = time.time()


@pytest.mark.parametrize("id_", [agent_id("eu-west", "a.1"), control_plane_id("cp-1")])
def test_a_spiffe_id_is_read_as_it_was_written(id_: SpiffeId) -> None:
    assert SpiffeId.parse(str(id_)) == id_


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://test/agent/eu",
        "spiffe://test/agent/eu/a/b",
        "spiffe://test/control-plane/cp/x",
        "spiffe://test/operator/x",
        "spiffe://test/agent/eu/../x",
        "spiffe://test/agent/eu/a\n",
        "https://test/agent/eu/a",
        "spiffe://TEST/agent/eu/a",
    ],
)
def test_other_uris_identify_nothing(uri: str) -> None:
    with pytest.raises(BadIdentity):
        SpiffeId.parse(uri)


def test_a_certificate_identifies_its_owner() -> None:
    mine = identity(agent_id())
    peer = trust().verify(mine.peer.certificate, NOW)
    assert peer.id == agent_id()
    assert peer.has_signed(b"message", mine.sign(b"message"))
    assert not peer.has_signed(b"another", mine.sign(b"message"))
    assert not peer.has_signed(b"message", b"")


def test_a_certificate_with_odd_extensions_is_rejected_and_not_an_error() -> None:
    own = identity(agent_id()).peer.certificate
    assert has_spiffe_id(own)
    key_usage, extended_key_usage, san = b"\x55\x1d\x0f", b"\x55\x1d\x25", b"\x86" + bytes([len(str(agent_id()))])
    for odd in (own.replace(extended_key_usage, key_usage), own.replace(san, b"\xa5" + san[1:])):
        with pytest.raises(BadIdentity, match="not a certificate"):
            has_spiffe_id(odd)


def test_a_certificate_of_another_fleet_with_the_same_name_is_rejected() -> None:
    with pytest.raises(BadIdentity, match="no authority of this fleet"):
        trust().verify(identity(agent_id(), fleet=1).peer.certificate, NOW)


@pytest.mark.parametrize("role", [ProcessRole.SERVER, ProcessRole.MONITOR])
def test_a_certificate_for_tls_alone_signs_nothing(role: ProcessRole) -> None:
    own = identity(SpiffeId(FLEET, role, "one"))
    assert SpiffeId.parse(str(own.id)) == own.id
    with pytest.raises(BadIdentity, match="is not one of the roles agent, control-plane"):
        trust().verify(own.peer.certificate, NOW)
    assert trust().verify(own.peer.certificate, NOW, (role,)).id == own.id
    with pytest.raises(BadIdentity):
        trust().verify(identity(agent_id()).peer.certificate, NOW, (role,))


def test_an_agent_cannot_issue_certificates() -> None:
    key, certificate = authority().issue(agent_id(), HOSTS, NOW, YEAR_S)
    control_plane = SpiffeId("agent-1", ProcessRole.CONTROL_PLANE, "cp-1")
    issued = Authority(key, certificate).issue(control_plane, HOSTS, NOW, YEAR_S)
    with pytest.raises(BadIdentity, match="no authority of this fleet"):
        Identity(*issued, trust(), NOW)


def test_an_authority_has_and_certifies_p256_keys_only() -> None:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP384R1()).private_bytes(serialization.Encoding.PEM, *form)
    with pytest.raises(BadIdentity, match="not a P-256 key"):
        authority().issue(agent_id(), HOSTS, NOW, YEAR_S, key)
    with pytest.raises(BadIdentity, match="not a P-256 key"):
        Authority(key, authority().pem)


@pytest.mark.parametrize("offset_s", [-2 * 86_400.0, YEAR_S + 60])
def test_a_certificate_counts_only_within_its_time(offset_s: float) -> None:
    certificate = identity(agent_id()).peer.certificate
    trust().verify(certificate, NOW)
    with pytest.raises(BadIdentity, match="is valid from"):
        trust().verify(certificate, NOW + offset_s)


def test_a_revoked_certificate_is_rejected() -> None:
    peer = identity(agent_id()).peer
    with pytest.raises(BadIdentity, match="revoked"):
        TrustBundle([authority().certificate], {peer.serial}).verify(peer.certificate, NOW)


def test_a_key_serves_only_the_certificate_that_was_issued_for_it() -> None:
    key, _ = authority().issue(agent_id(), HOSTS, NOW, YEAR_S)
    _, certificate = authority().issue(agent_id(), HOSTS, NOW, YEAR_S)
    with pytest.raises(BadIdentity, match="another private key"):
        Identity(key, certificate, trust(), NOW)


def test_a_certificate_never_outlives_its_authority() -> None:
    brief = Authority(*make_authority(FLEET, NOW, 60))
    issued = Identity(*brief.issue(agent_id(), HOSTS, NOW, YEAR_S), TrustBundle([brief.certificate]), NOW)
    assert issued.peer.not_after <= NOW + 60


@given(st.binary(max_size=200))
def test_no_other_bytes_are_a_certificate(certificate: bytes) -> None:
    with pytest.raises(BadIdentity):
        trust().verify(certificate, NOW)


@given(st.integers(0, 600), st.integers(0, 7))
def test_a_changed_certificate_identifies_no_other_process(position: int, bit: int) -> None:
    """The padding of the signature's bit string is not signed; a change of it changes nothing that is used."""
    peer = identity(agent_id()).peer
    certificate = bytearray(peer.certificate)
    certificate[position % len(certificate)] ^= 1 << bit
    try:
        changed = trust().verify(bytes(certificate), NOW)
    except BadIdentity:
        return
    assert (changed.id, changed.serial) == (peer.id, peer.serial)
    assert changed.public_key == peer.public_key
