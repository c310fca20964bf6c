"""A private certificate authority that issues the fleet's certificates. Pure: keys and certificates are PEM bytes.

Certificates have a P-256 key, one SPIFFE ID, and the DNS names and addresses that TLS clients connect to. They are
valid for TLS servers, TLS clients and signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.wire.identity import BadIdentity, Identity, SpiffeId, TrustBundle
from penstock.wire.region_key import KEY_BYTES

BACKDATED = timedelta(minutes=5)
"""Time before its issue from which a certificate is valid, for machines whose clocks are behind."""


class Authority:
    """A certificate authority.

    Args:
        private_key: P-256, in PEM.
        certificate: in PEM.

    Raises:
        BadIdentity: the key or the certificate is malformed, or the two do not belong together.
    """

    def __init__(self, private_key: bytes, certificate: bytes) -> None:
        self._key = _load_key(private_key)
        try:
            self.certificate = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:
            raise BadIdentity(f"not the certificate of an authority: {error}") from None
        if self._key.public_key() != self.certificate.public_key():
            raise BadIdentity("the certificate of the authority was issued for another private key")

    @property
    def fleet(self) -> str:
        """Name of the fleet that this authority was made for; it may certify further fleets under other names."""
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    @property
    def pem(self) -> bytes:
        """The certificate of the authority in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def region_key(self, region: str, fleet: str = "") -> bytes:
        """Returns the key that the agents of a region share (see `RegionKey`); the same at every call.

        Args:
            fleet: name of a fleet other than `self.fleet`, whose regions have other keys; empty for `self.fleet`.
        """
        secret = self._key.private_numbers().private_value.to_bytes(32)
        info = b"penstock/region-key/" + region.encode()
        if fleet not in ("", self.fleet):
            info += b"/" + fleet.encode()
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)

    def issue(
        self, id_: SpiffeId, hosts: Sequence[str], now: float, lifetime_s: float, private_key: bytes | None = None
    ) -> tuple[bytes, bytes]:
        """Issues a certificate; returns the private key and the certificate in PEM.

        Args:
            id_: identity of the process; the fleets that an authority certifies have different trust domains.
            hosts: DNS names and IP addresses at which TLS clients reach the process.
            now: Unix time, in seconds.
            lifetime_s: lifetime of the certificate, in seconds; ends at the latest with the authority's certificate.
            private_key: in PEM; None generates a new key.
        """
        SpiffeId.parse(str(id_))
        key = ec.generate_private_key(ec.SECP256R1()) if private_key is None else _load_key(private_key)
        start = datetime.fromtimestamp(now, UTC)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(str(id_)), *map(_general_name, hosts)]
        end = min(start + timedelta(seconds=lifetime_s), self.certificate.not_valid_after_utc)
        certificate = (
            _builder(id_.name, self.certificate.subject, key.public_key(), start - BACKDATED, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_usage(digital_signature=True, key_agreement=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _key_pem(key), certificate.public_bytes(serialization.Encoding.PEM)


def make_authority(fleet: str, now: float, lifetime_s: float) -> tuple[bytes, bytes]:
    """Makes a certificate authority; returns its private key and its certificate in PEM.

    Args:
        fleet: name of the fleet: the trust domain of its SPIFFE IDs.
        now: Unix time, in seconds.
        lifetime_s: lifetime of the authority's certificate, in seconds.
    """
    SpiffeId.parse(f"spiffe://{fleet}/control-plane/x")
    key = ec.generate_private_key(ec.SECP256R1())
    start = datetime.fromtimestamp(now, UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, fleet)])
    certificate = (
        _builder(fleet, name, key.public_key(), start - BACKDATED, start + timedelta(seconds=lifetime_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _key_pem(key), certificate.public_bytes(serialization.Encoding.PEM)


def standalone_identity(id_: SpiffeId, now: float) -> Identity:
    """Makes the identity of a process that is alone in its fleet, valid for a day from `now` (Unix time, s)."""
    lifetime_s = 86_400.0
    authority = Authority(*make_authority(id_.trust_domain, now, lifetime_s))
    return Identity(*authority.issue(id_, (), now, lifetime_s), TrustBundle([authority.certificate]), now)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _usage(
    *,
    digital_signature: bool = False,
    key_agreement: bool = False,
    key_cert_sign: bool = False,
    crl_sign: bool = False,
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_agreement=key_agreement,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise BadIdentity(f"{host!r} is neither a DNS name nor an IP address: {error}") from None


def _load_key(private_key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(private_key, None)
    except (ValueError, TypeError) as error:
        raise BadIdentity(f"the private key is not PEM without a passphrase: {type(error).__name__}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadIdentity("the private key is not a P-256 key")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
