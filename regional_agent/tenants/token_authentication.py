"""Identifies tenants by the tokens of identity providers (JWT, RFC 7519), without a call to the provider."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.budget_limits import tenant_of_tier
from penstock.tenancy.created_tenants.created_tenant import tenant_under
from penstock.tenancy.permissions import restrictions_of, with_reserved_models
from penstock.tenancy.tokens.issuer_keys import keys_for, verified_claims
from penstock.tenancy.tokens.token_claims import BadClaims, TokenClaims, read_claims
from regional_agent.tenants.issuer_registry import IssuerRegistry, key_source
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.tenant_index import TenantIndex

MAX_TOKEN_BYTES: Final = 8 * 1024

SUBJECT_CHARS: Final = 12
"""Hexadecimal digits of the SHA-256 of a token's subject, by which logs and the ledger identify it."""

KEY_AWAITED: Final = Refusal(
    Reason.INVALID_API_KEY, "the key that signed the token is not known yet; it is being fetched", retry_after_s=1.0
)
"""The refusal of a token with an unknown key of a known issuer, while a fetch of its keys is under way."""

_MALFORMED: Final = "the token is malformed"

_ClaimsDecoder: Final = msgspec.json.Decoder(dict[str, Any])


def is_token(key: bytes) -> bool:
    """Whether a bearer credential has the form of a token: three parts separated by dots, the first one JSON."""
    return key.startswith(b"eyJ") and key.count(b".") == 2


class TokenAuthentication:
    """Verifies tokens under one policy."""

    def __init__(self, policy: Policy, index: TenantIndex, issuers: IssuerRegistry, clock: Callable[[], float]) -> None:
        """Create a verifier.

        Args:
            index: the tenants that the API created.
            issuers: the keys of the identity providers.
            clock: Unix time (s).
        """
        self._policy = policy
        self._index = index
        self._issuers = issuers
        self._clock = clock

    def identify(self, token: bytes) -> Principal | Refusal:
        """The principal of a token, or its refusal. That the token has not expired is left to the caller."""
        if len(token) > MAX_TOKEN_BYTES:
            return _invalid(f"the token is larger than {MAX_TOKEN_BYTES} bytes")
        # Imported here, since agents whose policy has no issuer do not need the library.
        import jwt

        try:
            text = token.decode("ascii")
            header = jwt.get_unverified_header(text)
            unverified = _claims(text)
        except (jwt.PyJWTError, ValueError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _invalid(_MALFORMED)
        url = unverified.get("iss")
        issuer = self._policy.issuers_by_url.get(url) if isinstance(url, str) else None
        if issuer is None:
            return _invalid("the policy in force has no issuer of the token")
        kid, algorithm = header.get("kid"), header.get("alg")
        known = self._issuers.find(issuer, kid) if kid is None or isinstance(kid, str) else ()
        if not known:
            if isinstance(kid, str) and self._issuers.ask(issuer):
                return KEY_AWAITED
            return _invalid(f"the issuer {issuer.name} has no key of the token's kid")
        keys = keys_for(known, algorithm) if isinstance(algorithm, str) and algorithm in issuer.algorithms else []
        if not keys:
            return _invalid("the token's alg does not fit its key, or the issuer may not use it")
        if "crit" in header or "b64" in header:
            return _invalid("the token has extensions that are not supported")
        try:
            claims, key = verified_claims(
                text, keys, algorithms=[algorithm], audience=issuer.audiences, issuer=issuer.issuer, options=_OPTIONS
            )
            meaning = read_claims(issuer, claims, self._clock())
        except jwt.PyJWTError as error:
            return _invalid(_REASONS.get(type(error).__name__, _MALFORMED))
        except BadClaims as error:
            return _invalid(str(error))
        principal = self._principal(issuer, meaning)
        if isinstance(principal, Principal):
            principal.expires_at = meaning.expires_at
            # Of the key, not of the token: a token without an identifier ends with its key too.
            principal.source = key_source(issuer.name, key.kid)
            subject = claims.get("sub", meaning.tenant)
            principal.key = f"jwt-{issuer.name}-{sha256(str(subject).encode()).hexdigest()[:SUBJECT_CHARS]}"
        return principal

    def _principal(self, issuer: Issuer, meaning: TokenClaims) -> Principal | Refusal:
        found = self._tenant(meaning)
        if isinstance(found, Refusal):
            return found
        tenant, restricted = found, meaning.data_class
        if restricted is not None and restricted != tenant.data_class:
            if restricted not in self._policy.data_classes:
                # No rule would match it: a misspelled class must not free a request of all rules for classes.
                return _invalid("the policy in force does not use the data class that the token has")
            tenant = replace(tenant, data_class=restricted)
        permitted = restrictions_of(self._policy, tenant)
        if meaning.models is not None:
            permitted = (*permitted, with_reserved_models(self._policy, tenant, meaning.models))
        principal = Principal(tenant, models=permitted)
        principal.widest_data_class = found.data_class
        return principal

    def _tenant(self, meaning: TokenClaims) -> Tenant | Refusal:
        policy, name = self._policy, meaning.tenant
        tenant = policy.tenants.get(name)
        if tenant is not None:
            return tenant
        record = self._index.find_tenant(name)
        if record is not None:
            return tenant_under(policy, record)
        if meaning.tier is None:
            return _invalid("no tenant has the name that the token has")
        tier = policy.tier(meaning.tier)
        if tier is None:
            return Refusal(Reason.TIER_UNKNOWN, f"the policy in force has no tier {meaning.tier!r}")
        return tenant_of_tier(name, tier)


_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    # `read_claims` checks the times: by the clock of the agent, and not for requests that have started.
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}

_REASONS: Final = {
    "InvalidAudienceError": "the token is not for this audience",
    "InvalidIssuerError": "the token has another issuer",
    "InvalidSignatureError": "the token's signature does not verify",
    "MissingRequiredClaimError": "the token lacks a claim: exp, iss and aud are required",
}


def _claims(token: str) -> dict[str, Any]:
    """The claims of a token whose signature is not verified.

    Raises:
        ValueError, msgspec.DecodeError: the token is malformed.
    """
    from base64 import urlsafe_b64decode

    payload = token.split(".")[1]
    return _ClaimsDecoder.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def _invalid(why: str) -> Refusal:
    return Refusal(Reason.INVALID_API_KEY, why)
