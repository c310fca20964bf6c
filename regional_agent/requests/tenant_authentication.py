"""Step 1 of the request path: identifies the tenant by the API key."""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import ID_CHARS
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.websocket.websocket_offer import offered_keys

MAX_KEY_BYTES = 512

KEY_ID_CHARS = ID_CHARS
"""Hexadecimal digits of a key's SHA-256 that identify it between agents."""

MAX_CACHED_HEADERS = 1024
"""Maximum number of Authorization headers whose tenant is cached. A full cache is cleared."""


class Keyring:
    """The tenants of one policy by the digest of their keys.

    The table is indexed by the SHA-256 of the key that the client sent, so that the time of a look-up reveals nothing
    about other keys. Headers with a valid key are cached as received (here, and with an address in `authorization.py`),
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


def credential_of(request: Request) -> bytes | Refusal | None:
    """The Authorization value of a request, or the refusal of a request with different keys.

    A key in the API key header of the request's route, or in a subprotocol of a WebSocket, counts as `Bearer <key>`.
    Several may be sent, with the same key.
    """
    authorization, route = request.header(b"authorization"), request.route
    keys = [] if route is None or not route.api_key_header else request.every(route.api_key_header.encode())
    if request.upgrade:
        keys = [*keys, *offered_keys(request)]
    if not keys:
        return authorization
    credential = b"Bearer " + keys[0].strip()
    others = keys[1:] if authorization is None else [*keys[1:], authorization.partition(b" ")[2]]
    if not all(compare_digest(other.strip(), keys[0].strip()) for other in others):
        return Refusal(Reason.INVALID_API_KEY, "the request's headers contain different API keys; send one")
    return credential


def key_id(credential: bytes | Refusal | None) -> str:
    """The identifier of the key of a credential (see `credential_of`), for other agents; empty without a credential."""
    key = credential.partition(b" ")[2].strip() if isinstance(credential, bytes) else b""
    return sha256(key).hexdigest()[:KEY_ID_CHARS] if key else ""
