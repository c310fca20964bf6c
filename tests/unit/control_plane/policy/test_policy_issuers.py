"""Issuers of tokens in a bundle: compiled, absent from policies without them, and refused if two have one value."""

from __future__ import annotations

from msgspec import UNSET

from control_plane.policy.compiler import compile_bundle
from penstock.policy.kinds.issuers import Algorithm
from tests.support.policy_bundle import BUNDLE, refused

ISSUER = """
apiVersion: penstock/v1
kind: Issuer
name: corp
issuer: https://login.example
jwks_url: https://login.example/keys
audiences: [penstock]
tenants: [acme]
"""


def with_issuers(*documents: str) -> dict[str, str]:
    return {**BUNDLE, "issuers.yaml": "---".join(documents)}


def test_an_issuer_is_compiled_with_its_defaults() -> None:
    policy = compile_bundle(with_issuers(ISSUER))
    issuer = policy.issuers_by_url["https://login.example"]
    assert issuer.algorithms == (Algorithm.RS256, Algorithm.ES256, Algorithm.EDDSA)
    assert (issuer.tenant_claim, issuer.tenants, issuer.leeway_s, issuer.refresh_s) == ("sub", ("acme",), 30.0, 5.0)
    assert compile_bundle(BUNDLE).issuers is UNSET


def test_bad_issuers_are_refused() -> None:
    cases = {
        ISSUER.replace("https://login.example/keys", "http://login.example/keys"): "write an https URL",
        ISSUER.replace("https://login.example/keys", "https://user@login.example/keys"): "without credentials",
        ISSUER.replace("[penstock]", "[]"): "audiences",
        ISSUER + "algorithms: [HS256]\n": "algorithms",
        ISSUER + "algorithms: [none]\n": "algorithms",
        ISSUER.replace("tenants: [acme]\n", ""): "gives its tenants no tier",
        ISSUER + "tier: gold\n": "gold",
        ISSUER + "leeway_s: 3600\n": "leeway_s",
    }
    for document, message in cases.items():
        assert message in "\n".join(refused(with_issuers(document))), document
    twice = refused(with_issuers(ISSUER, ISSUER.replace("name: corp", "name: other")))
    assert "is also that of the issuer corp" in "\n".join(twice)
