"""Verifies any certificate (DER) that a stranger may send.

The first byte selects how the input is used: as the certificate; as a change of a certificate of the fleet (position,
then the bytes that stand there); or as a SPIFFE ID that the fleet's authority issues a certificate for, as a faulty
authority might. Property: the result is BadIdentity, or a peer whose certificate the authority signed as it is and
whose identity is the certificate's, written in one way only.
"""

from __future__ import annotations

import time
from functools import cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.wire.identity import BadIdentity, Peer, SpiffeId, TrustBundle
from tests.support.identities import agent_id, authority, identity

WORDS = (b"spiffe://test/agent/eu/a", b"spiffe://", b"/control-plane/", b"\x30\x82", b"\x06\x03\x55\x1d\x11", b"\x86")

NOW = time.time()


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[:1], data[1:]
    if select == b"r":
        certificate = content
    elif select == b"i":
        _issue(content.decode("latin-1"))
        return
    else:
        issued = identity(agent_id()).peer.certificate
        position = int.from_bytes(content[:2], "big") % len(issued)
        certificate = issued[:position] + content[2:] + issued[position + len(content[2:]) :]
    _verify(certificate)


def _verify(certificate: bytes) -> Peer | None:
    trust = TrustBundle([authority().certificate])
    try:
        peer = trust.verify(certificate, NOW)
    except BadIdentity:
        return None
    parsed = x509.load_der_x509_certificate(certificate)
    key = authority().certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(parsed.signature, parsed.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise AssertionError("the authority did not sign it") from None
    assert SpiffeId.parse(str(peer.id)) == peer.id
    assert trust.verify(certificate, NOW) is peer
    return peer


def _issue(uri: str) -> None:
    """Has the authority sign a certificate with `uri` as its name, and verifies that."""
    try:
        name = x509.UniformResourceIdentifier(uri)
    except ValueError:
        return
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority().certificate.subject)
        .public_key(_key().public_key())
        .serial_number(1)
        .not_valid_before(authority().certificate.not_valid_before_utc)
        .not_valid_after(authority().certificate.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([name]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(_public_key_of_authority()), critical=False)
        .sign(authority()._key, hashes.SHA256())
    )
    peer = _verify(certificate.public_bytes(Encoding.DER))
    assert peer is None or str(peer.id) == uri


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _public_key_of_authority() -> ec.EllipticCurvePublicKey:
    return authority()._key.public_key()
