"""Identities of the fleet's processes: X.509 certificates that the fleet's own authority issued, with SPIFFE IDs.

The SPIFFE ID of a process determines its permissions: an agent signs for its own name in its own region, a control
plane writes policies, plans and overrides (ADR 15). SPIFFE IDs:
https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Collection, Sequence
from copy import copy
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from penstock.wire.fleet_prefix import DEFAULT_PREFIX

MAX_CERTIFICATE_BYTES = 4096
"""Maximum size (bytes) of a certificate; a certificate of the fleet's authority has about 500 bytes."""

MAX_PEERS = 16_384
"""Maximum number of verified certificates that are cached; a full cache is cleared."""

PATH = "/penstock/v1/identity"
"""Path at which agents (peer listener) and control planes return their certificate, which is public: DER in base64."""

HEADER = "x-penstock-certificate"
"""Header in which a sender states its certificate: DER in base64."""

_NAME = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"
_SPIFFE_ID = re.compile(rf"spiffe://({_NAME})/(?:(control-plane|server|monitor)/({_NAME})|(agent)/({_NAME})/({_NAME}))")


class BadIdentity(Exception):
    """A certificate was not issued by this fleet's authority or is not valid now; the message states the reason."""


class NotValidNow(BadIdentity):
    """A certificate has expired, or is not valid yet."""


class ProcessRole(StrEnum):
    """The kind of process that a certificate identifies."""

    AGENT = "agent"
    CONTROL_PLANE = "control-plane"
    SERVER = "server"
    """etcd or Redis. The certificate is for TLS; no process of Penstock accepts messages or stored values with it."""
    MONITOR = "monitor"
    """A monitoring system, which reads metrics with the certificate as TLS client certificate."""


SIGNERS = frozenset({ProcessRole.AGENT, ProcessRole.CONTROL_PLANE})
"""Roles whose certificates are accepted as signers of messages and stored values."""


class SpiffeId(msgspec.Struct, frozen=True):
    """The identity of one process."""

    trust_domain: str
    """Name of the fleet."""
    role: ProcessRole
    name: str
    region: str = ""
    """Region of an agent; empty for the other roles."""

    def __str__(self) -> str:
        path = f"{self.region}/{self.name}" if self.role is ProcessRole.AGENT else self.name
        return f"spiffe://{self.trust_domain}/{self.role}/{path}"

    @classmethod
    def parse(cls, uri: str) -> SpiffeId:
        """Returns the identity that a URI names.

        Raises:
            BadIdentity: the URI is not a SPIFFE ID of a fleet.
        """
        match = _SPIFFE_ID.fullmatch(uri)
        if match is None:
            raise BadIdentity(
                f"{uri[:200]!r} is neither spiffe://<fleet>/agent/<region>/<name> nor spiffe://<fleet>/control-plane/<name>"
            )
        trust_domain, role, name, _, region, agent_name = match.groups()
        if role:
            return cls(trust_domain, ProcessRole(role), name)
        return cls(trust_domain, ProcessRole.AGENT, agent_name, region)


def encode_certificate(certificate: bytes) -> str:
    """Returns a certificate (DER) in base64, as used in messages."""
    return b64encode(certificate).decode()


def decode_certificate(text: str | bytes) -> bytes:
    """Returns the certificate (DER) of a base64 text; raises BadIdentity if the text is not base64 or is too long."""
    if len(text) > 2 * MAX_CERTIFICATE_BYTES:
        raise BadIdentity(f"a certificate may have {MAX_CERTIFICATE_BYTES} bytes")
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise BadIdentity("the certificate is not base64") from None


def has_spiffe_id(certificate: bytes) -> bool:
    """Returns whether a certificate (DER) names a process by SPIFFE ID; raises BadIdentity if it is malformed."""
    try:
        extensions = x509.load_der_x509_certificate(certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise BadIdentity(f"not a certificate: {error}") from None
    return any(uri.startswith("spiffe:") for uri in names.get_values_for_type(x509.UniformResourceIdentifier))


class Peer:
    """A process whose certificate was verified."""

    __slots__ = ("certificate", "fingerprint", "id", "not_after", "not_before", "public_key", "serial")

    def __init__(self, certificate: bytes, parsed: x509.Certificate, id_: SpiffeId) -> None:
        """Describes a verified certificate; only `TrustBundle.verify` creates peers.

        Args:
            certificate: in DER.
            parsed: the same certificate, parsed.
            id_: the SPIFFE ID in it.
        """
        public_key = parsed.public_key()
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(public_key.curve, ec.SECP256R1):
            raise BadIdentity(f"the certificate of {id_} has no P-256 key")
        self.certificate = certificate
        self.id = id_
        self.public_key = public_key
        self.fingerprint = parsed.fingerprint(hashes.SHA256()).hex()
        self.serial = f"{parsed.serial_number:x}"
        self.not_before = parsed.not_valid_before_utc.timestamp()
        """Unix time (s) from which the certificate is valid."""
        self.not_after = parsed.not_valid_after_utc.timestamp()
        """Unix time (s) until which the certificate is valid."""

    def __repr__(self) -> str:
        return f"Peer({self.id}, {self.fingerprint[:16]})"

    def check_valid_at(self, at: float) -> None:
        """Raises BadIdentity unless the certificate is valid at `at` (Unix time, s)."""
        if not self.not_before <= at <= self.not_after:
            raise _not_valid(f"the certificate of {self.id}", self.not_before, self.not_after)

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` (ECDSA with SHA-256, DER) is this process's signature of `message`."""
        try:
            self.public_key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


class TrustBundle:
    """The authorities that issue a fleet's certificates, and the certificates that were revoked."""

    def __init__(self, authorities: Sequence[x509.Certificate], revoked: Collection[str] = ()) -> None:
        """Trusts every authority in `authorities`; a fleet has two authorities during a change of authority.

        Args:
            revoked: serial numbers (hexadecimal, lower case) of certificates that are no longer accepted.

        Raises:
            BadIdentity: `authorities` is empty.
        """
        if not authorities:
            raise BadIdentity("there is no certificate authority to trust")
        self._store = Store(list(authorities))
        self._revoked = frozenset(revoked)
        self._verified: dict[bytes, Peer] = {}
        self._fleet = ""

    def for_fleet(self, fleet: str) -> TrustBundle:
        """Returns a bundle that accepts only the certificates of one of the fleets that the authorities certify.

        Args:
            fleet: name of the fleet: the trust domain of its SPIFFE IDs.
        """
        bundle = copy(self)
        bundle._verified = {}
        bundle._fleet = fleet
        return bundle

    def verify(self, certificate: bytes, at: float, roles: Collection[ProcessRole] = SIGNERS) -> Peer:
        """Returns the process that a certificate identifies.

        Args:
            certificate: in DER; may be any bytes from an untrusted sender.
            at: Unix time (s) at which the certificate must be valid.
            roles: the accepted roles of the process.

        Raises:
            BadIdentity: no authority of the fleet issued the certificate, the certificate is revoked or not valid at
                `at`, or the process has another role or belongs to another fleet of the same authority.
        """
        peer = self._verified.get(certificate)
        if peer is None:
            peer = self._verified_anew(certificate, at)
            if len(self._verified) >= MAX_PEERS:
                self._verified.clear()
            self._verified[certificate] = peer
        if peer.serial in self._revoked:
            raise BadIdentity(f"the certificate {peer.serial} of {peer.id} is revoked")
        if self._fleet not in ("", peer.id.trust_domain):
            raise BadIdentity(
                f"{peer.id} belongs to another fleet of the same authority than this process, which belongs to"
                f" {self._fleet}; keep the fleets apart, or issue the certificate with --fleet {self._fleet}"
            )
        if peer.id.role not in roles:
            raise BadIdentity(f"{peer.id} is not one of the roles {', '.join(sorted(roles))}")
        peer.check_valid_at(at)
        return peer

    def _verified_anew(self, certificate: bytes, at: float) -> Peer:
        if len(certificate) > MAX_CERTIFICATE_BYTES:
            raise BadIdentity(f"a certificate may have {MAX_CERTIFICATE_BYTES} bytes")
        try:
            parsed = x509.load_der_x509_certificate(certificate)
            policy = PolicyBuilder().store(self._store).time(datetime.fromtimestamp(at, UTC).replace(tzinfo=None))
            subjects = policy.build_client_verifier().verify(parsed, []).subjects or []
        except VerificationError as error:
            start, end = parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp()
            if not start <= at <= end:
                raise _not_valid("the certificate", start, end) from None
            raise BadIdentity(f"no authority of this fleet vouches for the certificate: {error}") from None
        except (ValueError, OverflowError, OSError, x509.InvalidVersion) as error:
            raise BadIdentity(f"not a certificate: {error}") from None
        uris = [name.value for name in subjects if isinstance(name, x509.UniformResourceIdentifier)]
        if len(uris) != 1:
            raise BadIdentity(f"the certificate has {len(uris)} SPIFFE IDs instead of one")
        return Peer(certificate, parsed, SpiffeId.parse(uris[0]))


def _not_valid(what: str, start: float, end: float) -> NotValidNow:
    first, last = (datetime.fromtimestamp(at, UTC).isoformat() for at in (start, end))
    return NotValidNow(f"{what} is valid from {first} to {last} only")


class Identity:
    """The identity of this process: its private key and its certificate."""

    __slots__ = ("_private_key", "peer", "prefix", "trust")

    def __init__(
        self,
        private_key: bytes,
        certificate: bytes,
        trust: TrustBundle,
        now: float,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        """Loads a key and the certificate issued for it.

        Args:
            private_key: P-256, unencrypted, in PEM.
            certificate: in PEM.
            trust: authorities of the fleet; certificates of their other fleets are not accepted.
            now: Unix time, in seconds.
            prefix: of the keys of the fleet in etcd; signatures cover it (ADR 19).

        Raises:
            BadIdentity: the key or the certificate is malformed, the two do not belong together, or the certificate is
                not one of the fleet's.
        """
        try:
            key = serialization.load_pem_private_key(private_key, None)
        except (ValueError, TypeError) as error:
            raise BadIdentity(f"the private key is not PEM without a passphrase: {type(error).__name__}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadIdentity("the private key is not a P-256 key")
        try:
            parsed = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:
            raise BadIdentity(f"the certificate is not PEM: {error}") from None
        self.peer = trust.verify(parsed.public_bytes(serialization.Encoding.DER), now, tuple(ProcessRole))
        """The identity of this process as other processes verify it."""
        self.prefix = prefix
        self.trust = trust.for_fleet(self.peer.id.trust_domain)
        if key.public_key().public_numbers() != self.peer.public_key.public_numbers():
            raise BadIdentity(f"the certificate of {self.peer.id} was issued for another private key")
        self._private_key = key

    def __repr__(self) -> str:
        return f"Identity({self.peer.id})"

    @property
    def id(self) -> SpiffeId:
        """The SPIFFE ID of this process."""
        return self.peer.id

    def sign(self, message: bytes) -> bytes:
        """Returns the signature of a message: ECDSA with SHA-256, in DER. Takes about 30 microseconds."""
        return self._private_key.sign(message, ec.ECDSA(hashes.SHA256()))

    def shared_secret(self, peer: Peer) -> bytes:
        """Returns the secret that only this process and `peer` share: ECDH on P-256 (NIST SP 800-56A, 5.7.1.2)."""
        return self._private_key.exchange(ec.ECDH(), peer.public_key)
