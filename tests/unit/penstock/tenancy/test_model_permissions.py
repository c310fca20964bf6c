"""The models of a tenant: by the list of its tier, by reservation for tiers, and by the pool that serves a name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.models import Model, ModelVersions, Version
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.tenancy.permissions import permits_model, permits_name, restrictions_of
from tests.support.planet import policy

MODELS = {
    "llama-shared": Model("llama-shared", adapters=("shared-*",)),
    "llama-bank": Model("llama-bank", only_tiers=("bank",), adapters=("bank-*",)),
    "llama-health": Model("llama-health", only_data_classes=("health",)),
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
        )
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
    ],
)
def test_a_reserved_model_is_for_its_tiers_and_data_classes_alone(who: Tenant, permitted: set[str]) -> None:
    restrictions = restrictions_of(POLICY, who)
    assert {model for model in MODELS if permits_model(POLICY, restrictions, model)} == permitted


def test_adapters_of_a_reserved_model_are_reserved() -> None:
    assert not permits_name(restrictions_of(POLICY, tenant("free")), "bank-1")
    assert permits_name(restrictions_of(POLICY, tenant("free")), "shared-1")
    assert permits_name(restrictions_of(POLICY, tenant("bank")), "bank-1")


def test_a_policy_without_reservations_restricts_nothing() -> None:
    assert restrictions_of(policy(), Tenant("t", "open")) == ()
