"""Tokens of an identity provider over real HTTP: which roles they grant, and which tokens are rejected."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from jwt.algorithms import RSAAlgorithm

from adapters.access.callers import Caller, Role
from control_plane.auth import bounded_fetch
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access, Unidentified
from control_plane.auth.bounded_fetch import MAX_RESPONSE_BYTES
from control_plane.auth.jwks import FRESH_S, MIN_INTERVAL_S, STALE_S, Jwks
from control_plane.auth.oidc import CLOCK_SKEW_S, BadToken, Oidc, OidcTrust
from penstock.tenancy.tokens.issuer_keys import MAX_KEYS, read_keys
from tests.support.clocks import SetClock
from tests.support.issuer import AUDIENCE, Issuer, jwk, rsa_key
from tests.support.wait import PATIENCE_S

RSA = rsa_key()
OTHER = rsa_key()
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


class Party:
    """A relying party of an issuer."""

    def __init__(self, issuer: Issuer, http: httpx.AsyncClient) -> None:
        self.clock = SetClock()
        self._issuer = issuer
        self._jwks = Jwks(issuer.jwks_url, http, self.clock)

    async def caller(self, token: str, **trust: Any) -> Caller:
        roles = {"sre": Role.OPERATOR, "owners": Role.ADMIN, "everybody": Role.VIEWER}
        return await Oidc(OidcTrust(self._issuer.url, AUDIENCE, roles, **trust), self._jwks).caller(token)

    async def refusal(self, token: str, **trust: Any) -> str:
        with pytest.raises(BadToken) as caught:
            await self.caller(token, **trust)
        for part in token.split("."):
            assert len(part) < 8 or part not in str(caught.value)
        return str(caught.value)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limit of requests, for busy machines."""
    monkeypatch.setattr(bounded_fetch, "FETCH_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer(one=RSA, curve=EC, edwards=ED)
    async with issuer.http:
        yield issuer


@pytest.fixture
async def party(issuer: Issuer) -> AsyncIterator[Party]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        yield Party(issuer, http)


@pytest.mark.parametrize(
    ("kid", "algorithm"),
    [("one", "RS256"), ("one", "RS512"), ("one", "PS256"), ("curve", "ES256"), ("edwards", "EdDSA")],
)
async def test_a_valid_token_is_accepted(issuer: Issuer, party: Party, kid: str, algorithm: str) -> None:
    assert await party.caller(issuer.token(kid, algorithm)) == Caller("oidc:ada", Role.OPERATOR)


async def test_claims_map_to_name_roles_and_regions(issuer: Issuer, party: Party) -> None:
    assert (await party.caller(issuer.token("one", groups="owners"))).role is Role.ADMIN
    assert (await party.caller(issuer.token("one", groups=["everybody"]))).role is Role.VIEWER
    assert (await party.caller(issuer.token("one", roles=["owners"]), role_claim="roles")).role is Role.ADMIN
    assert (await party.caller(issuer.token("one", email="a@b.c"), name_claim="email")).name == "oidc:a@b.c"
    for regions, reach in ((["eu-de"], frozenset({"eu-de"})), ("*", None), (None, frozenset()), (7, frozenset())):
        caller = await party.caller(issuer.token("one", regions=regions), regions_claim="regions")
        assert caller.regions == reach
    assert (await party.caller(issuer.token("one", aud=["others", AUDIENCE]))).name == "oidc:ada"


async def test_a_token_without_role_or_name_is_rejected(issuer: Issuer, party: Party) -> None:
    for groups in (None, [], "guests", ["guests"], 7, {"sre": True}, [["sre"]]):
        assert "groups claim gives a role" in await party.refusal(issuer.token("one", groups=groups))
    for name in (None, "", "x" * 129, "a\nb"):
        assert "no usable sub claim" in await party.refusal(issuer.token("one", sub=name))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": time.time() - CLOCK_SKEW_S - 60}, "the token has expired"),
        ({"nbf": time.time() + CLOCK_SKEW_S + 86_400}, "the token is not valid yet"),
        ({"aud": "others"}, "the token is not for this audience"),
        ({"aud": None}, "the token lacks a claim"),
        ({"iss": "https://elsewhere"}, "the token has another issuer"),
        ({"iss": None}, "the token lacks a claim"),
        ({"exp": None}, "the token lacks a claim"),
    ],
)
async def test_issuer_audience_and_times_are_checked(
    issuer: Issuer, party: Party, claims: dict[str, Any], reason: str
) -> None:
    assert (await party.refusal(issuer.token("one", **claims))).startswith(reason)


async def test_a_small_clock_skew_is_accepted(issuer: Issuer, party: Party) -> None:
    now = time.time()
    assert await party.caller(issuer.token("one", exp=now - CLOCK_SKEW_S / 2, nbf=now + CLOCK_SKEW_S / 2))


async def test_a_foreign_signature_is_rejected(issuer: Issuer, party: Party) -> None:
    assert await party.refusal(issuer.token("one", key=OTHER)) == "the token's signature does not verify"
    head, body, signature = issuer.token("one").split(".")
    forged = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b'"sre"', b'"owners"')).rstrip(b"=")
    assert await party.refusal(f"{head}.{forged.decode()}.{signature}") == "the token's signature does not verify"


def unsigned(issuer: Issuer, header: dict[str, Any]) -> str:
    """The signed part of a token, with the given header."""
    body = issuer.token("one").split(".")[1]
    return f"{base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b'=').decode()}.{body}"


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, ["RS256"], 7])
async def test_an_unsigned_token_is_rejected(issuer: Issuer, party: Party, alg: Any) -> None:
    assert await party.refusal(unsigned(issuer, {"alg": alg, "kid": "one", "typ": "JWT"}) + ".")


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("encoding", ["pem", "jwk"])
async def test_a_public_key_is_not_accepted_as_a_shared_secret(
    issuer: Issuer, party: Party, alg: str, encoding: str
) -> None:
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    secret = public if encoding == "pem" else json.dumps(jwk("one", RSA)).encode()
    signed = unsigned(issuer, {"alg": alg, "kid": "one", "typ": "JWT"})
    mac = hmac.new(secret, signed.encode(), getattr(hashlib, alg.replace("HS", "sha"))).digest()
    token = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert await party.refusal(token) == "the token's alg does not fit its key"


async def test_a_key_verifies_its_own_algorithm_only(issuer: Issuer, party: Party) -> None:
    assert "alg does not fit" in await party.refusal(issuer.token("curve", "RS256", key=RSA))
    issuer.keys = [jwk("one", RSA, alg="RS256")]
    party.clock.now += FRESH_S
    assert await party.refusal(issuer.token("one", "PS256")) == "the token's alg does not fit its key"
    assert await party.caller(issuer.token("one", "RS256"))


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "a.b", "\u00e9.b.c", "e30.e30.", "x" * 5000])
async def test_malformed_tokens_are_rejected(party: Party, token: str) -> None:
    assert await party.refusal(token)


async def test_a_rotated_key_replaces_the_old_one(issuer: Issuer, party: Party) -> None:
    old = issuer.token("one")
    await party.caller(old)
    issuer.private["two"] = OTHER
    issuer.keys = [jwk("two", OTHER)]
    party.clock.now += MIN_INTERVAL_S
    # The old key is accepted until keys are fetched again, which the first token of the new key causes.
    assert await party.caller(old)
    assert await party.caller(issuer.token("two"))
    assert await party.refusal(old) == "the issuer has no key of the token's kid"


async def test_a_removed_key_expires(issuer: Issuer, party: Party) -> None:
    old = issuer.token("one")
    await party.caller(old)
    issuer.keys = [jwk("two", OTHER)]
    party.clock.now += FRESH_S
    assert await party.refusal(old) == "the issuer has no key of the token's kid"


async def test_many_unknown_kids_fetch_the_keys_at_a_bounded_rate(issuer: Issuer, party: Party) -> None:
    await party.caller(issuer.token("one"))
    for number in range(50):
        await party.refusal(issuer.token(f"unknown-{number}", key=OTHER))
    assert issuer.http.requests == 1
    party.clock.now += MIN_INTERVAL_S
    for number in range(50):
        await party.refusal(issuer.token(f"unknown-{number}", key=OTHER))
    assert issuer.http.requests == 2
    assert await party.caller(issuer.token("one"))


async def test_keys_of_an_unavailable_issuer_stay_valid_for_a_while(issuer: Issuer, party: Party) -> None:
    await party.caller(issuer.token("one"))
    for answer in (
        (500, b"away"),
        (200, b"not json"),
        (200, b'{"keys": []}'),
        (200, b"x" * (MAX_RESPONSE_BYTES + 1)),
    ):
        issuer.answer = answer
        party.clock.now += FRESH_S
        assert await party.caller(issuer.token("one"))
    await issuer.http.stop()
    party.clock.now += FRESH_S
    assert await party.caller(issuer.token("one"))
    party.clock.now += STALE_S
    assert await party.refusal(issuer.token("one")) == "the issuer has no key of the token's kid"


async def test_a_hung_issuer_delays_one_caller_only(issuer: Issuer, party: Party) -> None:
    await party.caller(issuer.token("one"))
    issuer.http.silent = True
    issuer.http.asked.clear()
    party.clock.now += FRESH_S
    first = asyncio.create_task(party.caller(issuer.token("one")))
    await issuer.http.asked.wait()
    assert await party.caller(issuer.token("one"))
    assert not first.done()
    await issuer.http.stop()
    assert await first


async def test_a_token_without_a_kid_may_have_each_key_of_its_algorithm(issuer: Issuer, party: Party) -> None:
    nameless = issuer.token("one", header={})
    assert await party.caller(nameless)
    other = rsa_key()
    issuer.keys = [jwk(None, other), jwk(None, RSA)]
    party.clock.now += FRESH_S
    assert await party.caller(nameless)
    issuer.keys = [jwk(None, other)]
    party.clock.now += FRESH_S
    assert await party.refusal(nameless) == "the token's signature does not verify"


def test_keys_for_other_uses_are_ignored() -> None:
    weak = rsa_key(1024)
    private = {**RSAAlgorithm.to_jwk(RSA, as_dict=True), "kid": "private"}
    candidates = [
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
        jwk("encrypts", RSA, use="enc"),
        jwk("hmac", RSA, alg="HS256"),
        jwk("weak", weak),
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kty": "EC", "kid": "curve", "crv": "secp256k1", "x": "", "y": ""},
        private,
        "none",
        {},
        jwk("good", RSA),
    ]
    assert set(read_keys(json.dumps({"keys": candidates}).encode()).by_kid) == {"good"}
    with pytest.raises(ValueError, match="at most"):
        read_keys(json.dumps({"keys": [jwk("good", RSA)] * (MAX_KEYS + 1)}).encode())
    for bad in (b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 10_000):
        with pytest.raises(ValueError, match="not a JSON Web Key Set"):
            read_keys(bad)


async def test_tokens_are_accepted_besides_keys_and_the_admin_token(issuer: Issuer) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        trust = OidcTrust(issuer.url, AUDIENCE, {"sre": Role.OPERATOR})
        access = Access(AdminToken("0123456789abcdef"), oidc=Oidc(trust, Jwks(issuer.jwks_url, http)))
        assert (await access.caller("0123456789abcdef")).role is Role.ADMIN
        assert await access.caller(issuer.token("one")) == Caller("oidc:ada", Role.OPERATOR)
        for nobody in ("", "x", "a.b.c", issuer.token("one", aud="others")):
            with pytest.raises(Unidentified):
                await access.caller(nobody)
