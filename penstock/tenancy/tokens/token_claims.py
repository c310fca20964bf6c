"""What the claims of a verified token permit: its tenant, tier, data class and models, and its times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.policy.kinds.issuers import ISSUER_SEPARATOR, Issuer

MAX_PATTERNS: Final = 100
"""Maximum number of models in a claim."""

MAX_TIME_S: Final = 1e12
"""Maximum of a time (Unix time, s), and of its negative."""

MAX_VALUE_CHARS: Final = 256
"""Maximum length of a value of a claim."""

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class TokenClaims(msgspec.Struct, frozen=True):
    """The meaning of a token's claims."""

    tenant: str
    """Name of the tenant; with the prefix of the issuer for one of its own."""
    tier: str | None
    """Tier of one of the issuer's own tenants; None for other tenants, which have one already."""
    data_class: str | None
    """Data class of the token; None: that of the tenant."""
    models: tuple[str, ...] | None
    """Patterns of the models that the token may use; None: all of the tenant."""
    expires_at: float
    """Unix time (s) from which the token is refused."""


class BadClaims(Exception):
    """The token is refused; the message has the reason, and no value of a claim."""


def read_claims(issuer: Issuer, claims: Mapping[str, Any], now: float) -> TokenClaims:
    """Return the meaning of the claims of a token whose signature, issuer and audience are verified.

    That the token has not expired is not checked, since requests outlive their token.

    Args:
        now: Unix time (s).

    Raises:
        BadClaims: a claim is missing or malformed, or names what the issuer may not name.
    """
    expires_at, issued_at, not_before = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if expires_at is None:
        raise BadClaims("the token has no exp claim")
    for began in (issued_at, not_before):
        if began is not None and began > now + issuer.leeway_s:
            raise BadClaims("the token is not valid yet: check the clocks")
    if expires_at - (now if issued_at is None else issued_at) > issuer.max_lifetime_s + issuer.leeway_s:
        raise BadClaims(f"the token is valid for more than {issuer.max_lifetime_s:.0f} s")
    tenant, tier = _label(claims, issuer.tenant_claim), None
    if issuer.tenants is not None:
        if tenant not in issuer.tenants:
            raise BadClaims(f"the issuer {issuer.name} may not name the tenant of the token")
    else:
        tenant, tier = f"{issuer.name}{ISSUER_SEPARATOR}{tenant}", _tier(issuer, claims)
    data_class = None
    if issuer.data_class_claim is not None and issuer.data_class_claim in claims:
        data_class = _label(claims, issuer.data_class_claim)
    return TokenClaims(tenant, tier, data_class, _models(issuer, claims), expires_at + issuer.leeway_s)


def _tier(issuer: Issuer, claims: Mapping[str, Any]) -> str:
    tier = issuer.tier
    if issuer.tier_claim is not None and issuer.tier_claim in claims:
        tier = _label(claims, issuer.tier_claim)
        if tier not in issuer.tiers:
            raise BadClaims(f"the issuer {issuer.name} may not name the tier of the token")
    if tier is None:
        raise BadClaims(f"the token has no {issuer.tier_claim} claim")
    return tier


def _models(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    if issuer.models_claim is None or issuer.models_claim not in claims:
        return None
    found = claims[issuer.models_claim]
    names = found.split() if isinstance(found, str) else found
    if not isinstance(names, list) or len(names) > MAX_PATTERNS:
        raise BadClaims(f"the {issuer.models_claim} claim is not a list of at most {MAX_PATTERNS} models")
    if not all(isinstance(name, str) and len(name) <= MAX_VALUE_CHARS for name in names):
        raise BadClaims(f"the {issuer.models_claim} claim is not a list of names")
    return tuple(names)


def _label(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise BadClaims(f"the {name} claim is not 1 to 63 lower-case letters, digits and hyphens")
    return value


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # A comparison, since `isfinite` fails for integers that are no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_TIME_S <= value <= MAX_TIME_S:
        raise BadClaims(f"the {name} claim is not a time")
    return float(value)
