"""OIDC: people and workloads of an identity provider, by the signed tokens (JWT, RFC 7519) that it gives them."""

from __future__ import annotations

from typing import Any

import jwt
import msgspec

from control_plane.auth.callers import Caller, Role
from control_plane.auth.jwks import Jwks

CLOCK_SKEW_S = 30
"""How far (s) the issuer's clock and ours may be apart."""

MAX_NAME = 128
MAX_VALUES = 1_000
"""Values of a claim that are looked at."""

NAME_PREFIX = "oidc:"
"""Before every name, so that nobody at the issuer can be taken for an API key's holder."""

EVERY_REGION = "*"
"""In the claim of regions."""


class BadToken(Exception):
    """A token that lets nobody in; the message says why, and nothing of the token."""


class OidcTrust(msgspec.Struct, frozen=True):
    """Whom we believe, and what for."""

    issuer: str
    """The `iss` of its tokens, to the letter."""
    audience: str
    """What a token's `aud` must hold: us."""
    roles: dict[str, Role]
    """Role by value of `role_claim`; the largest that a token's values give counts, and one without any gives none."""
    role_claim: str = "groups"
    regions_claim: str | None = None
    """Claim with the regions that a caller may change, or `*`; a token without it may change none. None: everybody may
    change every region."""
    name_claim: str = "sub"
    """Who it is, for the audit log."""


class Oidc:
    """Tells callers by their tokens.

    Args:
        trust: whom we believe.
        keys: the issuer's.
    """

    def __init__(self, trust: OidcTrust, keys: Jwks) -> None:
        self._trust = trust
        self._keys = keys

    async def caller(self, token: str) -> Caller:
        """Whose token it is.

        Raises:
            BadToken: it is none, or not of this issuer, for us, now; or it gives no role.
        """
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise BadToken("the token is malformed") from None
        kid, algorithm = header.get("kid"), header.get("alg")
        key = await self._keys.key(kid) if kid is None or isinstance(kid, str) else None
        if key is None:
            raise BadToken("the issuer has no key of the token's kid")
        if not isinstance(algorithm, str) or algorithm not in key.algorithms:
            raise BadToken("the token's alg is not one that its key is for")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                issuer=self._trust.issuer,
                audience=self._trust.audience,
                leeway=CLOCK_SKEW_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise BadToken(_REASONS.get(type(error), "the token is malformed")) from None
        return self._identified(claims)

    def _identified(self, claims: dict[str, Any]) -> Caller:
        trust = self._trust
        name = claims.get(trust.name_claim)
        if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
            raise BadToken(f"the token has no {trust.name_claim} that names its holder")
        roles = {trust.roles[value] for value in _values(claims, trust.role_claim) if value in trust.roles}
        if not roles:
            raise BadToken(f"nothing in the token's {trust.role_claim} gives a role here")
        largest = max(roles, key=list(Role).index)
        return Caller(NAME_PREFIX + name, largest, self._regions(claims))

    def _regions(self, claims: dict[str, Any]) -> frozenset[str] | None:
        if self._trust.regions_claim is None:
            return None
        regions = _values(claims, self._trust.regions_claim)
        return None if EVERY_REGION in regions else frozenset(regions)


_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired: get a new one",
    jwt.ImmatureSignatureError: "the token is not valid yet: look at the clocks",
    jwt.InvalidAudienceError: "the token is not for this audience",
    jwt.InvalidIssuerError: "the token is of another issuer",
    jwt.InvalidSignatureError: "the token's signature does not verify",
    jwt.MissingRequiredClaimError: "the token lacks a claim: exp, iss and aud are needed",
}


def _values(claims: dict[str, Any], claim: str) -> list[str]:
    """The values of a claim that is a string or a list of them."""
    found = claims.get(claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return [value for value in listed[:MAX_VALUES] if isinstance(value, str)]
