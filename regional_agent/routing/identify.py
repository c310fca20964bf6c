"""Step 1 of the request path: identifies the tenant by the API key, and detects keys that were revoked."""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

from penstock.policy.policy import Policy, Tenant
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request

MAX_KEY_BYTES = 512

KEY_ID_CHARS = 16
"""Hexadecimal digits of a key's SHA-256 that identify it between agents: 64 bits."""

MAX_REVOKED = 65_536
"""Maximum number of revoked keys that are kept; the oldest are evicted first."""

MAX_CACHED_HEADERS = 1024
"""Maximum number of Authorization headers whose tenant is cached. A full cache is cleared."""


class Keyring:
    """The tenants of one policy by the digest of their keys.

    The table is indexed by the SHA-256 of the key that the client sent, so that the time of a look-up reveals nothing
    about other keys. Headers with a valid key are cached as received (here, and with an address in `admission.py`),
    only in the memory of this process and only while the policy is in force. The cache is indexed by Python's hash of
    the header, keyed by a secret of the process (SipHash, PEP 456). Bytes are compared only where all 64 bits of the
    hash agree, so that the time of a look-up does not reveal how much of a guessed key is correct.
    """

    __slots__ = ("_anonymous", "_by_digest", "_cached")

    def __init__(self, policy: Policy) -> None:
        """Index every tenant's key digests."""
        self._by_digest = {
            bytes.fromhex(digest): tenant for tenant in policy.tenants.values() for digest in tenant.key_digests
        }
        self._cached: dict[bytes, Tenant] = {}
        self._anonymous = policy.tenants.get(policy.anonymous_tenant) if policy.anonymous_tenant else None

    def identify(self, authorization: bytes | None) -> Tenant | Refusal:
        """The tenant of an `Authorization: Bearer` value; without one, the policy's anonymous tenant, if it has one."""
        if authorization is None:
            return self._anonymous or Refusal(
                Reason.INVALID_API_KEY, "send an API key as `Authorization: Bearer <key>`"
            )
        return self._cached.get(authorization) or self._look_up(authorization)

    def _look_up(self, authorization: bytes) -> Tenant | Refusal:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not key or len(key) > MAX_KEY_BYTES:
            return Refusal(Reason.INVALID_API_KEY, "the Authorization header is not `Bearer <key>`")
        tenant = self._by_digest.get(sha256(key.strip()).digest())
        if tenant is None:
            return Refusal(Reason.INVALID_API_KEY, "the API key is invalid")
        if len(self._cached) >= MAX_CACHED_HEADERS:
            self._cached.clear()
        self._cached[authorization] = tenant
        return tenant


class RevokedKeys:
    """The keys that an earlier policy assigned to a tenant and the policy in force does not.

    The record applies to requests that another region's agent has identified and forwarded. A key that was in no policy
    of this agent is not revoked, since the other region may have a newer policy.
    """

    __slots__ = ("_revoked", "_valid")

    def __init__(self) -> None:
        """Create an empty record: without a policy, no key is revoked."""
        self._valid: frozenset[tuple[str, str]] = frozenset()
        self._revoked: dict[tuple[str, str], None] = {}

    def use(self, policy: Policy) -> None:
        """Replace the policy in force."""
        before, self._valid = self._valid, _identities(policy)
        for identity in before - self._valid:
            self._revoked[identity] = None
        for identity in self._valid & self._revoked.keys():
            del self._revoked[identity]
        while len(self._revoked) > MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]

    def has(self, key_id: str, tenant: str) -> bool:
        """Whether a key (see `key_id`) of a tenant was revoked; an empty key means anonymous access as this tenant."""
        return (key_id, tenant) in self._revoked


def credential_of(request: Request) -> bytes | Refusal | None:
    """The Authorization value of a request, or the refusal of a request with different keys.

    A key in the API key header of the request's route counts as `Bearer <key>`. Both may be sent, with the same key.
    """
    authorization, route = request.header(b"authorization"), request.route
    if route is None or not route.api_key_header:
        return authorization
    name = route.api_key_header
    keys = request.every(name.encode())
    if not keys:
        return authorization
    credential = b"Bearer " + keys[0].strip()
    others = keys[1:] if authorization is None else [*keys[1:], authorization.partition(b" ")[2]]
    if not all(compare_digest(other.strip(), keys[0].strip()) for other in others):
        return Refusal(Reason.INVALID_API_KEY, f"{name} and Authorization contain different API keys; send one")
    return credential


def key_id(credential: bytes | Refusal | None) -> str:
    """The identifier of the key of a credential (see `credential_of`), for other agents; empty without a credential."""
    key = credential.partition(b" ")[2].strip() if isinstance(credential, bytes) else b""
    return sha256(key).hexdigest()[:KEY_ID_CHARS] if key else ""


def _identities(policy: Policy) -> frozenset[tuple[str, str]]:
    identities = {
        (digest[:KEY_ID_CHARS], tenant.name) for tenant in policy.tenants.values() for digest in tenant.key_digests
    }
    if policy.anonymous_tenant:
        identities.add(("", policy.anonymous_tenant))
    return frozenset(identities)
