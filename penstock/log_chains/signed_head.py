"""Heads of access logs, signed by the agent that wrote the log (ADR 15). Pure.

The chain of a log has no key: a process that can write the file can recompute the chain or cut off the end of the file.
A signed head states the last line that an agent had written, and the time up to which no further line exists. No other
process can create a signed head of the agent.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Annotated

import msgspec

from penstock.log_chains.access_log_chain import ChainHead
from penstock.wire.identity import BadIdentity, Identity, ProcessRole, TrustBundle, decode_certificate

BEGINNING = b'{"signed_head":'
"""Prefix of each line of a file of signed heads; no line of an access log begins with it."""

MAX_LINE_BYTES = 16_384


class BadHead(Exception):
    """The line is no signed head, or the agent has not signed it; the message states the reason."""


class SignedHead(msgspec.Struct, frozen=True):
    """A signed statement of an agent about its log."""

    head: ChainHead
    """Head of the last line; number 0 before the first line."""
    until: float
    """Every request that ended before this time (Unix time, s) has a line up to the head."""
    final: bool
    """Whether the agent has stopped, so that the head is the end of its epoch."""


class _Line(msgspec.Struct, frozen=True):
    signed_head: str
    until_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
    final: bool
    certificate: str
    signature: str


_decoder = msgspec.json.Decoder(_Line)


def sign_head(head: ChainHead, until: float, final: bool, identity: Identity) -> bytes:
    """The line, with its newline, by which an agent signs a head; see `SignedHead`."""
    until_ms = int(until * 1000)
    signature = identity.sign(_message(str(head), until_ms, final))
    certificate = b64encode(identity.peer.certificate).decode()
    line = _Line(str(head), until_ms, final, certificate, b64encode(signature).decode())
    return msgspec.json.encode(line) + b"\n"


def read_head(line: bytes, trust: TrustBundle) -> SignedHead:
    """Returns the statement in a line of a file of signed heads.

    Raises:
        BadHead: the line is no signed head, or the agent whose log it names has not signed it.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadHead("too long for a signed head")
    try:
        stated = _decoder.decode(line)
        head = ChainHead.parse(stated.signed_head)
        signature = b64decode(stated.signature, validate=True)
        certificate = decode_certificate(stated.certificate)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Base64Error, ValueError, BadIdentity) as error:
        raise BadHead(f"no signed head: {error}") from None
    until = stated.until_ms / 1000
    try:
        # A head outlives its certificate, which must have been valid at that time, and must not be revoked.
        signer = trust.verify(certificate, until, (ProcessRole.AGENT,))
    except BadIdentity as error:
        raise BadHead(f"signed head not accepted: {error}") from None
    if f"{signer.id.region}/{signer.id.name}" != head.agent:
        raise BadHead(f"signed head not accepted: {signer.id} signed it, and not {head.agent}")
    if not signer.has_signed(_message(stated.signed_head, stated.until_ms, stated.final), signature):
        raise BadHead("signed head not accepted: its content is not what was signed")
    return SignedHead(head, until, stated.final)


def _message(head: str, until_ms: int, final: bool) -> bytes:
    return b"penstock/access-log/1\n%b\n%d\n%d" % (head.encode(), until_ms, final)
