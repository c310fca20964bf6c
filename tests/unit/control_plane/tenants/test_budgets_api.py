"""Exchanges of budgets and `GET /v1/budgets`, at a control plane that leads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copytree

import httpx
import msgspec
import pytest

from control_plane.auth.authentication import Access
from control_plane.tenants.budget_view import BudgetList, budget_list
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.policy import Policy
from penstock.tenancy.budget_lease import BudgetKey, BudgetUse
from penstock.tenancy.fleet_budgets import FleetBudgets
from penstock.tenancy.tenant_record import RecordBudget, TenantRecord
from penstock.wire.budget_exchange import PATH, ExchangeRequest, open_answer
from penstock.wire.peer_keys import Purpose
from penstock.wire.signed_report import content_digest, report_headers
from tests.support.api_app import OPERATOR, TOKEN, client_of, is_problem, leading_control_plane, served
from tests.support.identities import agent_keyring, control_plane_keyring
from tests.support.paths import PLANET
from tests.support.planet import policy
from tests.support.wait import until_async

KEY = BudgetKey("limited", "", BudgetUnit.REQUESTS, "eu-de")

TENANT = """
---
apiVersion: penstock/v1
kind: Tenant
name: limited
data_class: open
quota: {requests_per_s: 10, burst_requests: null, concurrent: null}
"""


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a control plane whose policy has a tenant with a budget."""
    bundle = tmp_path / "policy"
    copytree(PLANET, bundle)
    (bundle / "limited.yaml").write_text(TENANT)
    async with leading_control_plane(policies=bundle) as north, client_of(served(north, Access(TOKEN))) as client:
        yield client


async def test_an_exchange_is_answered_and_shown(http: httpx.AsyncClient) -> None:
    keyring = agent_keyring("eu-de", "a")
    peer_keys = keyring.keys_with(control_plane_keyring().identity.peer.certificate, time.time())
    certificate = keyring.identity.peer.certificate
    use = BudgetUse(KEY, 1, 3.0, 0.0, 10.0)
    body = msgspec.msgpack.encode(ExchangeRequest("a", "eu-de", 1, 1, uses=(use,)))
    signed = report_headers(peer_keys, certificate, body, Purpose.BUDGET_USES)
    answered: list[httpx.Response] = []

    async def is_answered() -> bool:
        answered.append(await http.post(PATH, content=body, headers=signed))
        return answered[-1].status_code != 503

    await until_async(is_answered)
    assert answered[-1].status_code == 200, answered[-1].text
    answer = open_answer(answered[-1].content, content_digest(body), peer_keys)
    assert [lease.key for lease in answer.leases] == [KEY]
    assert answer.leases[0].amount > 0

    shown = await http.get("/v1/budgets", params={"tenant": KEY.tenant}, headers=OPERATOR)
    budgets = msgspec.json.decode(shown.content, type=BudgetList).budgets
    (found,) = [budget for budget in budgets if (budget.unit, budget.region) == (KEY.unit, KEY.region)]
    assert [part.agent for part in found.agents] == ["eu-de/a"]
    assert found.agents[0].used == 3.0

    assert is_problem(await http.post(PATH, content=body, headers=signed), 409)
    # A signature for a report is none for an exchange.
    report = report_headers(peer_keys, certificate, body)
    assert is_problem(await http.post(PATH, content=body, headers=report), 401)
    assert is_problem(await http.get("/v1/budgets", params={"tenant": "nobody"}, headers=OPERATOR), 404)
    assert is_problem(await http.get("/v1/budgets", params={"tenant": KEY.tenant}), 401)


def test_a_created_tenant_whose_tier_the_policy_lacks_has_no_budgets() -> None:
    budget = RecordBudget(BudgetUnit.REQUESTS, 10.0)
    record = TenantRecord("acme", "gone", 1000.0, budgets=(budget,))
    assert budget_list("acme", policy(), record, None) == BudgetList("acme", ())
    assert budget_list("nobody", policy(), None, None) is None


def test_an_issuers_own_tenant_has_the_budgets_that_agents_use() -> None:
    key = BudgetKey("idp:ada", "", BudgetUnit.REQUESTS, "")
    fleet = FleetBudgets(1, lambda key, tier: Budget(key.unit, 6.0) if tier == "silver" else None, 0.0)
    fleet.set_agents({"eu/a": "eu"}, 0.0)
    policy = Policy({}, {}, {}, ())
    assert budget_list("idp:ada", policy, None, fleet) is None
    uses = (BudgetUse(key, 1, 2.0, 0.0, 1.0, tier="silver"),)
    fleet.receive(ExchangeRequest("a", "eu", 1, 1, uses=uses), 1.0, 1.8e9)
    found = budget_list("idp:ada", policy, None, fleet)
    assert found is not None
    assert [(view.limit, view.agents[0].used) for view in found.budgets] == [(6.0, 2.0)]
    assert budget_list("idp:ben", policy, None, fleet) is None
