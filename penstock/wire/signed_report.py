"""The headers that authenticate an agent's report, or another message of an agent to a control plane.

The signature covers the digest of the body (RFC 9530) and not the body itself, so that the receiver verifies the sender
before it reads the body.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from penstock.wire import identity
from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId, decode_certificate, encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring, PeerKeys, Purpose

PATH = "/v1/reports"

DIGEST_HEADER = "content-digest"
SIGNATURE_HEADER = "x-penstock-signature"

MAX_DIGEST = 64
"""Maximum length of the digest header, in characters; a valid digest has 54."""

MAX_SIGNATURE = 128
"""Characters of the signature header that are read; a valid signature has 64."""


class ReportHead(msgspec.Struct, frozen=True):
    """The authenticated head of a report whose body is not read yet."""

    sender: SpiffeId
    digest: str
    """Content-Digest of the body."""
    peer_keys: PeerKeys
    """The keys shared with the sender, which sign the answer."""

    def verify(self, body: bytes) -> None:
        """Raises BadSignature unless `body` is the body that the sender signed."""
        if not hmac.compare_digest(content_digest(body), self.digest):
            raise BadSignature("the body does not have the digest that was signed")


def report_headers(
    peer_keys: PeerKeys, certificate: bytes, body: bytes, purpose: Purpose = Purpose.REPORT
) -> dict[str, str]:
    """Returns the headers of a report.

    Args:
        peer_keys: the keys that the sender shares with the receiver.
        certificate: the sender's certificate (DER).
        body: the encoded report.
        purpose: the kind of message, if it is no report.
    """
    digest = content_digest(body)
    return {
        identity.HEADER: encode_certificate(certificate),
        DIGEST_HEADER: digest,
        SIGNATURE_HEADER: peer_keys.sign(purpose, digest.encode()),
    }


def authenticate_head(
    keyring: Keyring, headers: Mapping[str, str], now: float, purpose: Purpose = Purpose.REPORT
) -> ReportHead:
    """Returns the head of a report from its headers.

    Args:
        keyring: of the receiver.
        headers: names in lower case.
        now: Unix time, in seconds.
        purpose: the kind of message, if it is no report.

    Raises:
        BadIdentity: the certificate is not one of the fleet's, or not an agent's.
        BadSignature: its owner did not sign the digest for the receiver.
    """
    digest, signature = headers.get(DIGEST_HEADER, ""), headers.get(SIGNATURE_HEADER, "")
    if not digest.isascii() or len(digest) > MAX_DIGEST:
        raise BadSignature(f"{DIGEST_HEADER} is not a SHA-256 digest")
    peer_keys = keyring.keys_with(decode_certificate(headers.get(identity.HEADER, "")), now)
    peer_keys.check(purpose, digest.encode(), signature[:MAX_SIGNATURE])
    sender = peer_keys.peer.id
    if sender.role is not ProcessRole.AGENT:
        raise BadIdentity(f"{sender} is not an agent")
    return ReportHead(sender, digest, peer_keys)


def content_digest(body: bytes) -> str:
    """Returns the Content-Digest of a body (RFC 9530)."""
    return f"sha-256=:{b64encode(sha256(body).digest()).decode()}:"
