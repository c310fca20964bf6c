"""Claims of tokens: what they name, and what the issuer may not name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.issuers import Issuer
from penstock.tenancy.tokens.token_claims import BadClaims, TokenClaims, read_claims

NOW = 1_000_000.0
IDP = Issuer(
    "idp",
    "https://login.example",
    "https://login.example/keys",
    ("penstock",),
    tier="silver",
    tier_claim="plan",
    tiers=("silver", "gold"),
    data_class_claim="data",
    models_claim="models",
)
NAMING = replace(IDP, tenants=("acme", "other"), tier=None, tier_claim=None, tiers=())
CLAIMS: dict[str, Any] = {"sub": "acme", "iat": NOW, "exp": NOW + 300}


def test_an_issuer_has_tenants_of_its_own_or_names_those_of_a_list() -> None:
    assert read_claims(IDP, CLAIMS, NOW) == TokenClaims("idp:acme", "silver", None, None, NOW + 330)
    assert read_claims(NAMING, CLAIMS, NOW) == TokenClaims("acme", None, None, None, NOW + 330)
    read = read_claims(IDP, CLAIMS | {"plan": "gold", "data": "personal", "models": "small-* chat"}, NOW)
    assert (read.tier, read.data_class, read.models) == ("gold", "personal", ("small-*", "chat"))
    assert read_claims(IDP, CLAIMS | {"models": []}, NOW).models == ()


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"sub": None}, "sub claim"),
        ({"sub": "Acme"}, "sub claim"),
        ({"sub": "a/b"}, "sub claim"),
        ({"sub": "idp:a"}, "sub claim"),
        ({"sub": "\u0430cme"}, "sub claim"),
        ({"sub": "acme\n"}, "sub claim"),
        ({"sub": ["acme"]}, "sub claim"),
        ({"exp": None}, "no exp"),
        ({"exp": "soon"}, "exp claim is not a time"),
        ({"exp": True}, "exp claim is not a time"),
        ({"exp": float("inf")}, "exp claim is not a time"),
        ({"exp": NOW + 90_000}, "valid for more than"),
        ({"iat": None, "exp": NOW + 90_000}, "valid for more than"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"plan": "platinum"}, "may not name the tier"),
        ({"plan": ["gold"]}, "plan claim"),
        ({"data": 5}, "data claim"),
        ({"models": 5}, "models claim"),
        ({"models": ["a"] * 101}, "models claim"),
        ({"models": ["a" * 257]}, "models claim"),
    ],
)
def test_other_claims_are_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadClaims, match=reason):
        read_claims(IDP, {name: value for name, value in (CLAIMS | claims).items() if value is not None}, NOW)


def test_a_tenant_that_is_not_listed_is_refused() -> None:
    with pytest.raises(BadClaims, match="may not name the tenant"):
        read_claims(NAMING, CLAIMS | {"sub": "third"}, NOW)


def test_clocks_may_differ_by_the_leeway_and_requests_outlive_their_token() -> None:
    assert read_claims(IDP, CLAIMS | {"nbf": NOW + 29, "iat": NOW + 29}, NOW).tenant == "idp:acme"
    assert read_claims(IDP, CLAIMS, NOW + 10_000).expires_at == NOW + 330


@pytest.mark.parametrize(("issued_at", "now"), [(NOW, NOW + 500.0), (None, NOW)])
def test_a_token_is_valid_for_the_lifetime_of_its_issuer_and_the_leeway(issued_at: float | None, now: float) -> None:
    issuer = replace(IDP, max_lifetime_s=3600.0, leeway_s=30.0)
    for lifetime_s, is_valid in ((3599.0, True), (3630.0, True), (3631.0, False)):
        claims = {"sub": "acme", "iat": issued_at, "exp": NOW + lifetime_s}
        claims = {name: value for name, value in claims.items() if value is not None}
        if is_valid:
            assert read_claims(issuer, claims, now).expires_at == NOW + lifetime_s + 30.0
        else:
            with pytest.raises(BadClaims, match="valid for more than 3600 s"):
                read_claims(issuer, claims, now)


def test_an_issuer_whose_tenants_have_no_tier_is_an_error() -> None:
    assert IDP.conflict() is NAMING.conflict() is None
    assert replace(IDP, tier=None, tier_claim=None, tiers=()).conflict() is not None
    assert replace(IDP, tiers=()).conflict() is not None
