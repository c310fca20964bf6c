"""The caller of a request that one control plane forwards to another: signed, short-lived, and accepted once.

The credential of the caller never leaves the control plane that received it, so that an impostor of the leader obtains
no credential.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256

import msgspec

from adapters.access.callers import Caller
from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId, decode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring, PeerKeys, Purpose

HEADER = "x-penstock-caller"

LIFETIME_S = 30.0
"""A forwarded caller older than this (s) is rejected; the bound allows for clock skew between control planes."""

MAX_TRACKED = 100_000
"""Maximum number of accepted nonces that are remembered; further forwarded callers are rejected."""


class ForwardedCaller(msgspec.Struct, frozen=True):
    """The caller of a request, as stated by the control plane that authenticated the caller."""

    caller: Caller
    client: str
    """Address of the client."""
    request: str
    """`request_digest` of the forwarded request."""
    at: float
    """Unix time (s) of the signature."""
    nonce: str


class ForgedCaller(Exception):
    """The forwarded caller is not signed by a control plane of this fleet, or does not belong to the request."""


def request_digest(method: str, target: str, body: bytes) -> str:
    """Returns the digest that binds a forwarded caller to one request; `target` is path and query."""
    return sha256(b"%b %b\n%b" % (method.encode(), target.encode(), body)).hexdigest()


def seal_caller(caller: Caller, client: str, request: str, peer_keys: PeerKeys, now: float) -> str:
    """Returns the header's value, signed for the leader."""
    forwarded = ForwardedCaller(caller, client, request, now, secrets.token_hex(16))
    return peer_keys.seal(Purpose.CALLER, msgspec.json.encode(forwarded))


class ForwardedCallers:
    """Verifies forwarded callers at the leader.

    Args:
        keyring: of this control plane.
        clock: Unix time, in seconds.
    """

    def __init__(self, keyring: Keyring, clock: Callable[[], float]) -> None:
        self._keyring = keyring
        self._clock = clock
        self._used: dict[str, float] = {}
        """Accepted nonces with the time (s) until which they are remembered, oldest first."""

    def verify(self, token: str, certificate: str) -> tuple[SpiffeId, ForwardedCaller]:
        """Return the forwarding control plane, and the caller, of a forwarded request whose body is not known yet.

        Args:
            token: the header's value.
            certificate: certificate of the forwarding control plane, in base64.

        Raises:
            ForgedCaller: the token is not signed by a control plane of this fleet, or has expired.
        """
        now = self._clock()
        try:
            self._keyring.keys_with(decode_certificate(certificate), now)
            payload, peer_keys = self._keyring.open(Purpose.CALLER, token, now)
            forwarded = msgspec.json.decode(payload, type=ForwardedCaller)
        except (BadIdentity, BadSignature, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ForgedCaller(str(error)) from None
        if peer_keys.peer.id.role is not ProcessRole.CONTROL_PLANE:
            raise ForgedCaller(f"{peer_keys.peer.id} is not a control plane")
        if abs(now - forwarded.at) > LIFETIME_S:
            raise ForgedCaller(f"signed {now - forwarded.at:.1f} s ago; check that the clocks are synchronised")
        return peer_keys.peer.id, forwarded

    def accept(self, token: str, certificate: str, request: str) -> ForwardedCaller:
        """Return the caller of a forwarded request, and record the nonce.

        Args:
            token: the header's value.
            certificate: certificate of the forwarding control plane, in base64.
            request: `request_digest` of the received request.

        Raises:
            ForgedCaller: the token is not valid for the request, has expired, or was accepted before; or MAX_TRACKED
                nonces are remembered.
        """
        _, forwarded = self.verify(token, certificate)
        if forwarded.request != request:
            raise ForgedCaller("the signature was made for another request")
        now = self._clock()
        self._forget(now)
        if forwarded.nonce in self._used or len(self._used) >= MAX_TRACKED:
            raise ForgedCaller("the request was forwarded before")
        self._used[forwarded.nonce] = now + 2 * LIFETIME_S
        return forwarded

    def _forget(self, now: float) -> None:
        while self._used and next(iter(self._used.values())) < now:
            del self._used[next(iter(self._used))]
