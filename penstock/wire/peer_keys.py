"""Authentication of messages between two processes: HMAC-SHA256 under a key that only these two share.

The key is derived from the two certificates (ECDH), so no message is needed to establish it, and signing one message
costs one HMAC. Each fleet, each purpose and each direction has its own key (HKDF, RFC 5869): a signature is invalid in
another fleet of the same authority, for another kind of message, and if it is sent back to its author.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from enum import StrEnum
from hashlib import sha256

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.wire.identity import MAX_PEERS, BadIdentity, Identity, Peer

MAX_TOKEN = 8192
"""Maximum length of a token, in characters; longer ones are rejected before they are decoded."""

FINGERPRINT_CHARS = 32
"""Characters of a certificate's fingerprint (hexadecimal) that a token starts with: 128 bits."""


class BadSignature(Exception):
    """The message was not signed by the process that it names, or was modified in transit."""


class Purpose(StrEnum):
    """The kind of message that a signature is valid for."""

    ROUTE = "route"
    PROBE = "probe"
    PROBE_ANSWER = "probe-answer"
    REPORT = "report"
    CALLER = "caller"
    BUDGET_USES = "budget-uses"
    BUDGET_LEASES = "budget-leases"
    OBJECT = "object"
    OBJECT_ANSWER = "object-answer"


class PeerKeys:
    """The keys that this process shares with one peer: signs messages to the peer, and checks its messages."""

    __slots__ = ("_own", "_prefix", "_receiving", "_sending", "peer")

    def __init__(self, identity: Identity, peer: Peer) -> None:
        """Derives the keys of every purpose; takes about 200 microseconds."""
        secret = identity.shared_secret(peer)
        own, other = identity.peer.fingerprint, peer.fingerprint
        self.peer = peer
        self._own = own[:FINGERPRINT_CHARS]
        self._prefix = identity.prefix
        bound = f"penstock/v2/{identity.id.trust_domain}{identity.prefix}"
        self._sending = _keys(secret, bound, own, other)
        self._receiving = _keys(secret, bound, other, own)

    def __repr__(self) -> str:
        return f"PeerKeys({self.peer.id})"

    def sign(self, purpose: Purpose, message: bytes) -> str:
        """Returns the signature, in hexadecimal, of a message to the peer that is sent beside the message."""
        return hmac.digest(self._sending[purpose], message, "sha256").hex()

    def check(self, purpose: Purpose, message: bytes, signature: str) -> None:
        """Raises BadSignature unless `signature` is the peer's signature of `message`; compares in constant time."""
        expected = hmac.digest(self._receiving[purpose], message, "sha256").hex().encode()
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise BadSignature(f"the signature does not match, or is not for the fleet with prefix {self._prefix}")

    def seal(self, purpose: Purpose, payload: bytes) -> str:
        """Returns a token for a header: fingerprint of this process's certificate, payload and signature."""
        return f"{self._own}.{urlsafe_b64encode(payload).decode()}.{self.sign(purpose, payload)}"

    def open(self, purpose: Purpose, token: str) -> bytes:
        """Returns the payload of a token that the peer made by `seal`; raises BadSignature."""
        _, encoded, signature = split_token(token)
        payload = _decode(encoded)
        self.check(purpose, payload, signature)
        return payload


class Keyring:
    """The keys that this process shares with its peers, by the fingerprint of the peer's certificate."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._previous: Identity | None = None
        self._peers: dict[str, Peer] = {}
        """Processes whose certificates were received, by the certificate's fingerprint."""
        self._by_fingerprint: dict[str, tuple[PeerKeys, ...]] = {}
        """Keys derived since the certificate of this process was renewed."""

    def use(self, identity: Identity) -> None:
        """Replaces the identity of this process. Messages to the previous certificate remain acceptable."""
        self._previous, self.identity = self.identity, identity
        self._by_fingerprint.clear()

    def keys_with(self, certificate: bytes, now: float) -> PeerKeys:
        """Returns the keys shared with the owner of a certificate (DER), and records the certificate (see `introduce`).

        Args:
            now: Unix time, in seconds.

        Raises:
            BadIdentity: the certificate is not one of the fleet's.
        """
        return self._keys_with(self.introduce(certificate, now))[0]

    def introduce(self, certificate: bytes, now: float) -> Peer:
        """Records the certificate (DER) of another process, whose tokens are acceptable afterwards.

        Args:
            now: Unix time, in seconds.

        Raises:
            BadIdentity: the certificate is not one of the fleet's.
        """
        peer = self.identity.trust.verify(certificate, now)
        name = peer.fingerprint[:FINGERPRINT_CHARS]
        if name not in self._peers and len(self._peers) >= MAX_PEERS:
            self._peers.clear()
            self._by_fingerprint.clear()
        self._peers[name] = peer
        return peer

    def open(self, purpose: Purpose, token: str, now: float) -> tuple[bytes, PeerKeys]:
        """Returns the payload of a token, and the keys shared with its sender, whose certificate was received before.

        Args:
            now: Unix time, in seconds.

        Raises:
            BadSignature: the token is malformed, or its sender is unknown, expired or did not sign the token.
        """
        fingerprint, _, _ = split_token(token)
        known = self._peers.get(fingerprint)
        if known is None:
            raise BadSignature("the sender's certificate was not received before")
        try:
            peer = self.identity.trust.verify(known.certificate, now)
        except BadIdentity as error:
            raise BadSignature(str(error)) from None
        reason = ""
        for peer_keys in self._keys_with(peer):
            try:
                return peer_keys.open(purpose, token), peer_keys
            except BadSignature as error:
                reason = str(error)
        raise BadSignature(reason)

    def _keys_with(self, peer: Peer) -> tuple[PeerKeys, ...]:
        name = peer.fingerprint[:FINGERPRINT_CHARS]
        keyring = self._by_fingerprint.get(name)
        if keyring is None:
            identities = (self.identity,) if self._previous is None else (self.identity, self._previous)
            keyring = self._by_fingerprint[name] = tuple(PeerKeys(identity, peer) for identity in identities)
        return keyring


def split_token(token: str) -> tuple[str, str, str]:
    """Returns the three parts of a token: fingerprint, payload (base64) and signature; raises BadSignature."""
    if len(token) > MAX_TOKEN:
        raise BadSignature("the token is too long")
    parts = token.split(".")
    if len(parts) != 3:
        raise BadSignature("a token has three parts")
    return parts[0], parts[1], parts[2]


def _decode(encoded: str) -> bytes:
    try:
        payload = urlsafe_b64decode(encoded)
    except (Base64Error, ValueError):
        raise BadSignature("the token is not base64") from None
    # The decoder ignores some characters, so only the canonical encoding is accepted: each payload has one token.
    if urlsafe_b64encode(payload).decode() != encoded:
        raise BadSignature("the token is not base64 in its canonical form")
    return payload


def _keys(secret: bytes, scope: str, sender: str, receiver: str) -> dict[Purpose, bytes]:
    def derived(purpose: Purpose) -> bytes:
        info = f"{scope}{purpose}/{sender}/{receiver}".encode()
        return HKDF(hashes.SHA256(), sha256().digest_size, None, info).derive(secret)

    return {purpose: derived(purpose) for purpose in Purpose}
