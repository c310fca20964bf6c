"""Authentication by the signed tokens (JWT, RFC 7519) of an OpenID Connect identity provider."""

from __future__ import annotations

from typing import Any

import jwt
import msgspec

from adapters.access.callers import Caller, Role
from control_plane.auth.jwks import Jwks
from penstock.tenancy.tokens.issuer_keys import keys_for, verified_claims

CLOCK_SKEW_S = 30
"""Tolerated difference (s) between the clocks of the issuer and this machine."""

MAX_NAME = 128
MAX_VALUES = 1_000
"""Maximum number of values of a claim that are evaluated."""

NAME_PREFIX = "oidc:"
"""Prefix of the names of token holders, so that they cannot equal the name of an API key."""

EVERY_REGION = "*"
"""Value of the regions claim that stands for all regions."""


class BadToken(Exception):
    """The token is invalid; the message has the reason, and nothing of the token."""


class OidcTrust(msgspec.Struct, frozen=True):
    """The trusted issuer, and the use of its claims."""

    issuer: str
    """Exact value of `iss` in the issuer's tokens."""
    audience: str
    """Value that the `aud` of a token must contain."""
    roles: dict[str, Role]
    """Role for each value of `role_claim`. The highest role of a token counts; a token without a role is rejected."""
    role_claim: str = "groups"
    regions_claim: str | None = None
    """Claim with the regions that a caller may change, or `*`; without the claim, a caller may change no region. None:
    callers may change every region."""
    name_claim: str = "sub"
    """Claim with the caller's name for the audit log."""


class Oidc:
    """Authenticates callers by their tokens.

    Args:
        trust: the trusted issuer.
        keys: the issuer's public keys.
    """

    def __init__(self, trust: OidcTrust, keys: Jwks) -> None:
        self._trust = trust
        self._keys = keys

    @property
    def issuer(self) -> str:
        """The trusted issuer."""
        return self._trust.issuer

    def for_audience(self, audience: str) -> Oidc:
        """Return the authentication by tokens for another audience, with the same issuer, keys and roles."""
        return Oidc(msgspec.structs.replace(self._trust, audience=audience), self._keys)

    async def caller(self, token: str, nonce: str | None = None) -> Caller:
        """Return the caller that a token authenticates.

        Args:
            token: the token.
            nonce: nonce of the sign-in for which the ID token was issued; None: the token is not from a sign-in.

        Raises:
            BadToken: the token is malformed, expired, of another issuer or audience, or gives no role.
        """
        audience = self._trust.audience
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise BadToken("the token is malformed") from None
        kid, algorithm = header.get("kid"), header.get("alg")
        known = await self._keys.keys(kid) if kid is None or isinstance(kid, str) else ()
        if not known:
            raise BadToken("the issuer has no key of the token's kid")
        keys = keys_for(known, algorithm) if isinstance(algorithm, str) else []
        if not keys:
            raise BadToken("the token's alg does not fit its key")
        try:
            claims = verified_claims(
                token,
                keys,
                algorithms=[algorithm],
                issuer=self._trust.issuer,
                audience=audience,
                leeway=CLOCK_SKEW_S,
                options={"require": ["exp", "iss", "aud"]},
            )[0]
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise BadToken(_REASONS.get(type(error), "the token is malformed")) from None
        if nonce is not None and (claims.get("nonce") != nonce or claims.get("azp", audience) != audience):
            raise BadToken("the token was issued for another sign-in")
        return self._caller(claims)

    def _caller(self, claims: dict[str, Any]) -> Caller:
        trust = self._trust
        name = claims.get(trust.name_claim)
        if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
            raise BadToken(f"the token has no usable {trust.name_claim} claim")
        roles = {trust.roles[value] for value in _values(claims, trust.role_claim) if value in trust.roles}
        if not roles:
            raise BadToken(f"no value of the token's {trust.role_claim} claim gives a role")
        largest = max(roles, key=list(Role).index)
        return Caller(NAME_PREFIX + name, largest, self._regions(claims))

    def _regions(self, claims: dict[str, Any]) -> frozenset[str] | None:
        if self._trust.regions_claim is None:
            return None
        regions = _values(claims, self._trust.regions_claim)
        return None if EVERY_REGION in regions else frozenset(regions)


_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired: get a new one",
    jwt.ImmatureSignatureError: "the token is not valid yet: check the clocks",
    jwt.InvalidAudienceError: "the token is not for this audience",
    jwt.InvalidIssuerError: "the token has another issuer",
    jwt.InvalidSignatureError: "the token's signature does not verify",
    jwt.MissingRequiredClaimError: "the token lacks a claim: exp, iss and aud are required",
}


def _values(claims: dict[str, Any], claim: str) -> list[str]:
    """Return the values of a claim that is a string or a list of strings."""
    found = claims.get(claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return [value for value in listed[:MAX_VALUES] if isinstance(value, str)]
