"""Identifies the tenant of any token, and reads any key set of an identity provider.

The first byte selects the input: a token as it is received, claims that the provider has signed, a header before signed
claims, or a key set. Property: the token is refused with a short, printable reason, or its tenant has the prefix of the
issuer; only a token that the provider has signed has a tenant. The published form of a key set has the same keys.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.tenants import Tier
from penstock.policy.policy import Policy
from penstock.tenancy.tokens.issuer_keys import PublicKey, publishable_keys, read_keys, usable_keys
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.tenant_index import TenantIndex
from regional_agent.tenants.token_authentication import TokenAuthentication

NOW = 1_800_000_000.0
MAX_REASON_CHARS = 300

WORDS = (
    b'"iss":"https://id"',
    b'"aud":"a"',
    b'"exp":1800000300',
    b'"iat":1800000000',
    b'"sub":"ada"',
    b'"tier":"other"',
    b'"data":"open"',
    b'"models":["*"]',
    b'"alg":"EdDSA"',
    b'"alg":"none"',
    b'"kid":"k"',
    b'"crit":["x"]',
    b'"b64":false',
    b'{"keys":[',
    b'"kty":"OKP","crv":"Ed25519","x":"',
    b"1e999",
    b"\\u0000",
)

_KEY = Ed25519PrivateKey.from_private_bytes(Random(1).randbytes(32))
_ISSUER = Issuer(
    "idp",
    "https://id",
    "https://id/keys",
    ("a",),
    tier="t",
    tier_claim="tier",
    tiers=("t", "other"),
    data_class_claim="data",
    models_claim="models",
)
_TIERS = {name: Tier(name, "open") for name in ("t", "other")}
_POLICY = Policy({}, {}, {}, (), tiers=_TIERS, issuers={"idp": _ISSUER})
_PUBLIC = PublicKey(_KEY.public_key(), frozenset({"EdDSA"}), "")
_REGISTRY = SimpleNamespace(find=lambda issuer, kid: (_PUBLIC,) if kid in (None, "k") else ())
_VERIFIER = TokenAuthentication(_POLICY, TenantIndex(), cast(Any, _REGISTRY), lambda: NOW)
_HEADER = b'{"alg":"EdDSA","kid":"k"}'
_CLAIMS = b'{"iss":"https://id","aud":"a","exp":1800000300,"sub":"ada"}'


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[0] % 4 if data else 0, data[1:]
    if select == 3:
        _check_keys(content)
        return
    if select == 0:
        token = content
    elif select == 1:
        token = _signed(_HEADER, content)
    else:
        token = _signed(content, _CLAIMS)
    found = _VERIFIER.identify(token)
    if isinstance(found, Principal):
        assert select != 0
        assert found.tenant.name.startswith("idp:")
        assert found.tenant.tier in _TIERS
        assert found.expires_at > 0.0
    else:
        assert found.detail.isprintable()
        assert len(found.detail) <= MAX_REASON_CHARS


def _check_keys(content: bytes) -> None:
    try:
        read = read_keys(content)
    except ValueError:
        return
    published = publishable_keys(content)
    assert usable_keys(list(published)).by_kid.keys() == read.by_kid.keys()
    assert all("d" not in key for key in published)


def _signed(header: bytes, claims: bytes) -> bytes:
    signed = _encode(header) + b"." + _encode(claims)
    return signed + b"." + _encode(_KEY.sign(signed))


def _encode(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")
