"""The models of a tenant: by the list of its tier, by reservation for tiers, and by the pool that serves a name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.models import Model, ModelVersions, Version
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.policy.model_versions import reserved_model
from penstock.tenancy.permissions import permits_model, permits_name, restrictions_of
from penstock.verification.policy_warnings import pool_warnings
from penstock.verification.stages import at_pools
from tests.support.planet import policy

MODELS = {
    "llama-shared": Model("llama-shared", adapters=("shared-*",)),
    "llama-bank": Model("llama-bank", only_tiers=("bank",), adapters=("bank-*",)),
    "llama-health": Model("llama-health", only_data_classes=("health",)),
    "llama-acme": Model("llama-acme", only_tenants=("acme",)),
    "other": Model("other"),
}
POLICY = replace(
    policy(),
    models=MODELS,
    versions={
        "llama": ModelVersions(
            "llama",
            (Version("llama-shared", 100.0),),
            for_tiers={"bank": "llama-bank"},
            for_data_classes={"health": "llama-health"},
            for_tenants={"acme": "llama-acme"},
        ),
        "bank": ModelVersions("bank", (Version("llama-bank", 100.0),)),
    },
)


def tenant(tier: str, *models: str) -> Tenant:
    return Tenant("t", "open", tier=tier).under(Tier(tier, "open", models=models or None))


@pytest.mark.parametrize(
    ("who", "permitted"),
    [
        (Tenant("t", "open"), {"llama-shared", "other"}),
        (tenant("free"), {"llama-shared", "other"}),
        (tenant("bank"), {"llama-shared", "llama-bank", "other"}),
        (tenant("bank", "llama"), {"llama-shared", "llama-bank"}),
        (tenant("free", "llama"), {"llama-shared"}),
        (tenant("free", "llama-*"), {"llama-shared"}),
        (tenant("free", "*"), {"llama-shared", "other"}),
        (tenant("bank", "other"), {"other"}),
        (Tenant("t", "health"), {"llama-shared", "llama-health", "other"}),
        (replace(tenant("bank", "llama"), data_class="health"), {"llama-shared", "llama-health"}),
        (replace(tenant("bank", "llama"), name="acme"), {"llama-shared", "llama-acme"}),
        (tenant("free", "bank"), set()),
        (tenant("bank", "bank"), {"llama-bank"}),
    ],
)
def test_a_reserved_model_is_for_its_tiers_and_data_classes_alone(who: Tenant, permitted: set[str]) -> None:
    restrictions = restrictions_of(POLICY, who)
    assert {model for model in MODELS if permits_model(POLICY, restrictions, model)} == permitted


def test_adapters_of_a_reserved_model_are_reserved() -> None:
    assert not permits_name(restrictions_of(POLICY, tenant("free")), "bank-1")
    assert permits_name(restrictions_of(POLICY, tenant("free")), "shared-1")
    assert permits_name(restrictions_of(POLICY, tenant("bank")), "bank-1")


def test_the_versions_of_a_name_that_are_reserved_for_others_are_hidden() -> None:
    assert not permits_name(restrictions_of(POLICY, tenant("free")), "bank")
    assert permits_name(restrictions_of(POLICY, tenant("bank")), "bank")
    assert reserved_model(POLICY.versions["llama"], replace(tenant("bank"), name="acme")) == "llama-acme"


def test_nobody_reaches_a_model_that_is_reserved_for_others() -> None:
    in_force = replace(POLICY, tiers={"bank": Tier("bank", "open"), "free": Tier("free", "open")})
    assert list(at_pools(in_force)) == []
    assert "model llama-acme is reserved for acme, which must be a tenant that the API creates" in [
        *pool_warnings(in_force)
    ]
    # Versions that are not reserved alike, which the compiler rejects, would let others in.
    mixed = ModelVersions("mixed", (Version("other", 100.0), Version("llama-bank", 0.0)))
    found = [*at_pools(replace(in_force, versions=in_force.versions | {"mixed": mixed}))]
    assert {each.region for each in found} == {"model llama-bank"}
    assert "tenant free/*" in {each.requests for each in found}


def test_a_policy_without_reservations_restricts_nothing() -> None:
    assert restrictions_of(policy(), Tenant("t", "open")) == ()
