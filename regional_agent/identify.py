"""Step 1 of a request's road: who it belongs to, by the API key it carries."""

from __future__ import annotations

from hashlib import sha256

from penstock.policy import Policy, Tenant
from penstock.reasons import Reason, Refusal

LONGEST_KEY_BYTES = 512


class Keyring:
    """The tenants of one policy by the digest of their keys.

    The table is looked up by a SHA-256 of what the client sent, so the time a look-up takes tells nothing of any key.
    """

    __slots__ = ("_anonymous", "_by_digest")

    def __init__(self, policy: Policy) -> None:
        """Index every tenant's key digests."""
        self._by_digest = {
            bytes.fromhex(digest): tenant for tenant in policy.tenants.values() for digest in tenant.key_digests
        }
        self._anonymous = policy.tenants.get(policy.anonymous_tenant) if policy.anonymous_tenant else None

    def identify(self, authorization: bytes | None) -> Tenant | Refusal:
        """The tenant of an `Authorization: Bearer` value; without one the anonymous tenant, where policy has it."""
        if authorization is None:
            return self._anonymous or Refusal(Reason.UNKNOWN_KEY, "send an API key as `Authorization: Bearer <key>`")
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not key or len(key) > LONGEST_KEY_BYTES:
            return Refusal(Reason.UNKNOWN_KEY, "the Authorization header is not `Bearer <key>`")
        return self._by_digest.get(sha256(key.strip()).digest()) or Refusal(Reason.UNKNOWN_KEY, "no such API key")
