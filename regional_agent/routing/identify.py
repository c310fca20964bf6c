"""Step 1 of a request's road: who it belongs to, by the API key it carries."""

from __future__ import annotations

from hashlib import sha256

from penstock.policy.policy import Policy, Tenant
from penstock.routing.reasons import Reason, Refusal

MAX_KEY_BYTES = 512

MAX_REMEMBERED = 1024
"""Authorization headers whose tenant is remembered; then they are looked up anew."""


class Keyring:
    """The tenants of one policy by the digest of their keys.

    The table is looked up by a SHA-256 of what the client sent, so the time a look-up takes tells nothing of any key.
    Headers that had a valid key are remembered as they came (here, and with an address in `admission.py`), in this
    process alone and for as long as the policy is in force. That look-up goes by Python's hash of the header, which is
    keyed by a secret of the process (SipHash, PEP 456): bytes are only compared where all 64 bits agree, so its time
    does not tell how much of a guess is right.
    """

    __slots__ = ("_anonymous", "_by_digest", "_remembered")

    def __init__(self, policy: Policy) -> None:
        """Index every tenant's key digests."""
        self._by_digest = {
            bytes.fromhex(digest): tenant for tenant in policy.tenants.values() for digest in tenant.key_digests
        }
        self._remembered: dict[bytes, Tenant] = {}
        self._anonymous = policy.tenants.get(policy.anonymous_tenant) if policy.anonymous_tenant else None

    def identify(self, authorization: bytes | None) -> Tenant | Refusal:
        """The tenant of an `Authorization: Bearer` value; without one the anonymous tenant, where policy has it."""
        if authorization is None:
            return self._anonymous or Refusal(
                Reason.INVALID_API_KEY, "send an API key as `Authorization: Bearer <key>`"
            )
        return self._remembered.get(authorization) or self._look_up(authorization)

    def _look_up(self, authorization: bytes) -> Tenant | Refusal:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not key or len(key) > MAX_KEY_BYTES:
            return Refusal(Reason.INVALID_API_KEY, "the Authorization header is not `Bearer <key>`")
        tenant = self._by_digest.get(sha256(key.strip()).digest())
        if tenant is None:
            return Refusal(Reason.INVALID_API_KEY, "no such API key")
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[authorization] = tenant
        return tenant
