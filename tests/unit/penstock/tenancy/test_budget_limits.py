"""Limits of budgets by their names: tenants of documents, of records, and of identity providers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.policy.policy import Policy
from penstock.tenancy.budget_lease import BudgetKey, BudgetUse
from penstock.tenancy.budget_limits import budget_of, reported_tier, tenant_of_tier
from penstock.tenancy.fleet_budgets import FleetBudgets
from penstock.tenancy.tenant_record import RecordBudget, TenantKey, TenantRecord
from penstock.wire.budget_exchange import ExchangeRequest

SIX, NINE = Budget(BudgetUnit.REQUESTS, 6.0), Budget(BudgetUnit.REQUESTS, 9.0)
SILVER, GOLD = Tier("silver", "open", budgets=(SIX,)), Tier("gold", "open", budgets=(NINE,))
IDP = Issuer(
    "idp", "https://login.example", "https://login.example/keys", ("penstock",), tier_claim="plan", tiers=("silver",)
)
POLICY = Policy(
    {}, {}, {"acme": Tenant("acme", "open")}, (), tiers={"silver": SILVER, "gold": GOLD}, issuers={"idp": IDP}
)


def key_of(tenant: str) -> BudgetKey:
    return BudgetKey(tenant, "", BudgetUnit.REQUESTS, "")


@pytest.mark.parametrize(
    ("tenant", "tier", "limit"),
    [
        ("idp:ada", "silver", SIX),
        ("idp:ada", "gold", None),
        ("idp:ada", "lost", None),
        ("idp:ada", "", None),
        ("other:ada", "silver", None),
        ("ada", "silver", None),
        ("idp", "silver", None),
        ("acme", "silver", None),
    ],
)
def test_agents_report_the_tier_of_an_issuers_own_tenant(tenant: str, tier: str, limit: Budget | None) -> None:
    assert budget_of(key_of(tenant), POLICY, None, tier) == limit


def test_an_issuer_that_names_other_tenants_has_none_of_its_own() -> None:
    naming = replace(POLICY, issuers={"idp": replace(IDP, tenants=("acme",))})
    assert budget_of(key_of("idp:ada"), naming, None, "silver") is None


def test_a_record_wins_over_the_tier_of_a_token() -> None:
    assert budget_of(key_of("idp:ada"), POLICY, TenantRecord("idp:ada", "gold", 0.0), "silver") == NINE
    assert budget_of(key_of("idp:ada"), POLICY, TenantRecord("idp:ada", "lost", 0.0), "silver") is None


def test_a_key_has_the_budgets_of_its_own_record_and_no_others() -> None:
    limits = {"k1": RecordBudget(BudgetUnit.REQUESTS, 6.0), "k2": RecordBudget(BudgetUnit.REQUESTS, 9.0)}
    keys = tuple(TenantKey(id, b"", 0.0, budgets=(limit,)) for id, limit in limits.items())
    record = TenantRecord("ada", "gold", 0.0, keys=keys)
    found = [budget_of(replace(key_of("ada"), key_id=id), POLICY, record) for id in ("k1", "k2", "k3")]
    assert found == [limits["k1"], limits["k2"], None]
    assert budget_of(replace(key_of("acme"), key_id="k1"), POLICY, None) is None
    assert budget_of(replace(key_of("ada"), region="lost"), POLICY, record) is None


def test_the_budgets_of_a_rotated_key_are_those_of_the_first() -> None:
    limit = RecordBudget(BudgetUnit.REQUESTS, 6.0)
    successor = TenantKey("k2", b"", 0.0, budgets=(limit,), rotated_from="k1")
    record = TenantRecord("ada", "gold", 0.0, keys=(successor,))
    assert [budget_of(replace(key_of("ada"), key_id=id), POLICY, record) for id in ("k1", "k2")] == [limit, None]


def test_only_the_tier_of_an_issuers_own_tenant_is_reported() -> None:
    assert reported_tier(tenant_of_tier("idp:ada", SILVER)) == "silver"
    assert reported_tier(tenant_of_tier("acme", SILVER)) == ""
    assert reported_tier(Tenant("acme", "open")) == ""


def test_a_tenant_of_a_tier_has_its_data_class() -> None:
    tenant = tenant_of_tier("idp:ada", replace(SILVER, data_class="personal"))
    assert (tenant.name, tenant.data_class, tenant.tier, tenant.budgets) == ("idp:ada", "personal", "silver", (SIX,))


def test_the_leader_leases_the_budget_of_an_issuers_own_tenant() -> None:
    fleet = FleetBudgets(1, lambda key, tier: budget_of(key, POLICY, None, tier), 0.0)
    fleet.set_agents({"eu/a": "eu"}, 0.0)
    use = BudgetUse(key_of("idp:ada"), 1, 3.0, 0.0, 1.0, tier="silver")
    fleet.receive(ExchangeRequest("a", "eu", 1, 1, uses=(use,)), 1.0, 1.8e9)
    (lease,) = fleet.answer("eu/a", 1, 1.0, 1.8e9).leases
    assert 0.0 < lease.amount <= 3.0
    fleet.tick(2.0, 1.8e9)
    assert use.key in fleet.budgets
