"""Step 1 of the request path: identifies the tenant by the API key, or by a token of an identity provider."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from math import inf

from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import ID_CHARS
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.permissions import restrictions_of
from regional_agent.http.headers.client_keys import offered_keys
from regional_agent.http.messages import Request
from regional_agent.tenants.principal import Principal, principal_under
from regional_agent.tenants.tenant_index import TenantIndex
from regional_agent.tenants.token_authentication import KEY_AWAITED, TokenAuthentication, is_token

MAX_KEY_BYTES = 512

KEY_ID_CHARS = ID_CHARS
"""Hexadecimal digits of a key's SHA-256 that identify it between agents."""

MAX_CACHED_HEADERS = 16_384
"""Maximum number of Authorization headers whose principal is cached; the oldest is evicted first."""

EXPIRED = Refusal(Reason.INVALID_API_KEY, "the API key or token has expired: get a new one")
REVOKED = Refusal(Reason.INVALID_API_KEY, "the API key was revoked")
_MALFORMED = Refusal(Reason.INVALID_API_KEY, "the Authorization header is not `Bearer <key>`")
_INVALID = Refusal(Reason.INVALID_API_KEY, "the API key is invalid")


class Keyring:
    """The tenants of one policy, and those that the API created, by the digest of their keys.

    The tables are indexed by the SHA-256 of the key that the client sent, so that the time of a look-up reveals nothing
    about other keys. Headers with a valid key are cached as received (here, and with an address in `authorization.py`),
    only in the memory of this process and only while the policy and the tenant are as they were. The cache is indexed
    by Python's hash of the header, keyed by a secret of the process (SipHash, PEP 456). Bytes are compared only where
    all 64 bits of the hash agree, so that the time of a look-up does not reveal how much of a guessed key is correct.
    Invalid keys are not cached, so that they evict no valid one.

    A tenant of the policy wins over one that the API created with the same name.
    """

    __slots__ = ("_anonymous", "_by_digest", "_cached", "_clock", "_index", "_policy", "_tokens")

    def __init__(
        self,
        policy: Policy,
        index: TenantIndex,
        clock: Callable[[], float] = time.time,
        tokens: TokenAuthentication | None = None,
    ) -> None:
        """Index every tenant's key digests.

        Args:
            index: the tenants that the API created.
            clock: Unix time (s), by which keys expire.
            tokens: verifies tokens; None if the policy has no issuer of tokens.
        """
        self._tokens = tokens
        self._policy = policy
        self._index = index
        self._clock = clock
        self._by_digest = {
            bytes.fromhex(digest): Principal(tenant, digest[:KEY_ID_CHARS], models=restrictions_of(policy, tenant))
            for tenant in policy.tenants.values()
            for digest in tenant.key_digests
        }
        self._cached: dict[bytes, Principal] = {}
        anonymous = policy.tenants.get(policy.anonymous_tenant) if policy.anonymous_tenant else None
        self._anonymous = None if anonymous is None else Principal(anonymous, models=restrictions_of(policy, anonymous))

    def identify(
        self, authorization: bytes | None, *, started: bool = False, verify: bool = True
    ) -> Principal | Refusal:
        """The principal of an `Authorization: Bearer` value; without one, that of the policy's anonymous tenant.

        Args:
            started: whether the request started before, so that a key that has expired since is accepted.
            verify: whether a token that is not cached is verified, which costs much more than a key; False refuses it.
        """
        if authorization is None:
            if self._anonymous is None:
                return Refusal(Reason.INVALID_API_KEY, "send an API key as `Authorization: Bearer <key>`")
            self._anonymous.version = self._index.version
            return self._anonymous
        # Tokens are long: their digest takes less memory.
        cached_as = authorization if len(authorization) <= MAX_KEY_BYTES else sha256(authorization).digest()
        principal = self._cached.get(cached_as)
        if principal is None or (principal.version != self._index.version and not self._index.confirms(principal)):
            self._cached.pop(cached_as, None)
            found = self._look_up(authorization, verify)
            if isinstance(found, Refusal):
                return found
            principal = found
            principal.version = self._index.version
            if len(self._cached) >= MAX_CACHED_HEADERS:
                del self._cached[next(iter(self._cached))]
            self._cached[cached_as] = principal
        if principal.expires_at <= self._clock() and not started:
            return EXPIRED
        return principal

    def _look_up(self, authorization: bytes, verify: bool) -> Principal | Refusal:
        scheme, _, key = authorization.partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer" or not key:
            return _MALFORMED
        found: Principal | Refusal = _MALFORMED
        if len(key) <= MAX_KEY_BYTES:
            digest = sha256(key).digest()
            found = self._by_digest.get(digest) or self._created(digest)
        if self._tokens is not None and (found is _MALFORMED or found is _INVALID) and is_token(key):
            return self._tokens.identify(key) if verify else _INVALID
        return found

    def _created(self, digest: bytes) -> Principal | Refusal:
        """The principal of a key that the API created."""
        if digest.hex()[:KEY_ID_CHARS] in self._policy.revoked_ids:
            return REVOKED
        found = self._index.find_key(digest)
        if found is None or found.tenant.name in self._policy.tenants:
            return _INVALID
        key = found.key
        if key.revoked_at is not None:
            return REVOKED
        principal = principal_under(self._policy, found.tenant)
        if isinstance(principal, Refusal):
            return principal
        principal.key, principal.budgets, principal.budget_key = key.id, key.budgets, key.budget_key
        principal.expires_at = inf if key.expires_at is None else key.expires_at
        return principal


def is_failure(found: Principal | Refusal) -> bool:
    """Whether a credential counts as a failure of its sender's address: one that never was valid, nor can become so."""
    return (
        isinstance(found, Refusal)
        and found.reason is Reason.INVALID_API_KEY
        and found is not EXPIRED
        and found is not REVOKED
        and found is not KEY_AWAITED
    )


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
