"""Kind of policy documents: identity providers whose tokens identify tenants."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from penstock.policy.fields import Conflict, Label, NonEmpty, PolicyStruct, TierRef, bounds, length, pattern

ISSUER_SEPARATOR: Final = ":"
"""Separates the name of an issuer from that of one of its own tenants. No other names contain it."""

ClaimName = Annotated[str, length(1, 128)]


class Algorithm(StrEnum):
    """A signature algorithm of tokens (RFC 7518, RFC 8037). All are asymmetric."""

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    EDDSA = "EdDSA"


class Issuer(PolicyStruct, frozen=True):
    """An identity provider whose signed tokens (JWT, RFC 7519) clients may send in place of an API key.

    The control plane fetches the provider's keys and publishes them; agents verify tokens without a call to the
    provider. A token belongs to the tenant that a claim names: to one of `tenants`, or, without that list, to the
    tenant `<name of the issuer>:<value of the claim>`, which needs no further document.
    """

    name: Label
    """Unique name; also the prefix of the names of its tenants."""
    issuer: Annotated[str, length(1, 512)]
    """Exact value of `iss` in the tokens; unique."""
    jwks_url: Annotated[
        str,
        length(1, 512),
        pattern(
            r"^(https://[^\s#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?/[^\s#@]*)$",
            "write an https URL without credentials, such as https://login.example/.well-known/jwks.json",
        ),
    ]
    """URL of the JSON Web Key Set (RFC 7517), as the control plane reaches it. Redirects are not followed."""
    audiences: NonEmpty[tuple[Annotated[str, length(1, 256)], ...]]
    """Accepted values of `aud`: at least one must be in the token."""
    algorithms: NonEmpty[tuple[Algorithm, ...]] = (Algorithm.RS256, Algorithm.ES256, Algorithm.EDDSA)
    """Accepted algorithms; those that the key of a token permits apply."""
    tenant_claim: ClaimName = "sub"
    """Claim with the name of the tenant: lower-case letters, digits and hyphens."""
    tenants: NonEmpty[tuple[Label, ...]] | None = None
    """Tenants of the bundle, or created over the API, that tokens may name. null: the issuer has tenants of its own,
    with its name as prefix."""
    tier: TierRef | None = None
    """Tier of the issuer's own tenants whose tokens name none."""
    tier_claim: ClaimName | None = None
    """Claim with the tier of one of the issuer's own tenants."""
    tiers: tuple[TierRef, ...] = ()
    """Tiers that `tier_claim` may name."""
    data_class_claim: ClaimName | None = None
    """Claim with a data class. It can only restrict: a class that would permit a region that the tenant's own data
    class forbids is refused, and one that no tenant, tier or rule of the policy has."""
    models_claim: ClaimName | None = None
    """Claim with the models that the token may use, a list or words separated by spaces, with `*` for any characters;
    the restriction of the tenant applies too."""
    leeway_s: Annotated[float, bounds(ge=0, le=300)] = 30.0
    """Tolerated difference (s) between the clocks of the provider and of agents."""
    max_lifetime_s: Annotated[float, bounds(ge=1, le=31_536_000)] = 86_400.0
    """Maximum time (s) from the issue of a token to its expiry; others are refused."""
    refresh_s: Annotated[float, bounds(ge=1, le=3600)] = 5.0
    """Interval (s) at which the control plane fetches the keys."""

    def conflict(self) -> Conflict | None:
        if self.tenants is None and self.tier is None and not self.tiers:
            return Conflict("gives its tenants no tier", "write `tier`, or `tier_claim` and `tiers`, or `tenants`")
        if (self.tier_claim is None) != (not self.tiers):
            return Conflict("has a claim of tiers without tiers, or the reverse", "write `tier_claim` and `tiers`")
        return None
