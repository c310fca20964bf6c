"""Budgets as the API shows them: limits, what is left, and how the leader divides them among agents."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit
from penstock.policy.policy import Policy
from penstock.tenancy.budget_lease import PER_MINUTE, BudgetKey, keyed_budgets
from penstock.tenancy.divided_budget import DividedBudget
from penstock.tenancy.fleet_budgets import FleetBudgets
from penstock.tenancy.opening_share import whole
from penstock.tenancy.tenant_record import TenantRecord


class AgentPart(msgspec.Struct, frozen=True):
    """What one agent has of a budget."""

    agent: str
    """Region and name, with a slash."""
    held: float
    """Amount that the agent may use without a further lease."""
    used: float
    """Amount used, by the agent's counter; of concurrent requests, those that run."""
    demand_per_s: float
    """Amount per second that clients asked for recently; of concurrent requests, their number."""
    rate_per_s: float
    """Rate at which the agent would continue without a leader; of concurrent requests, their number."""


class BudgetView(msgspec.Struct, frozen=True):
    """One budget of a tenant."""

    key_id: str
    """Identifier of the key that the budget limits; empty for a budget of the tenant."""
    unit: BudgetUnit
    scope: BudgetScope
    region: str
    """Region in which the budget holds; empty for the fleet."""
    limit: float
    """Amount per minute, day or month, or the number of concurrent requests."""
    burst: float
    """Amount that can be used at once after a pause."""
    left: float
    """Amount that can be used now, at the agents together; negative: requests used more than their estimates."""
    used: float
    """Of the burst, day or month; of concurrent requests, those that run."""
    agents: tuple[AgentPart, ...]
    """Agents that use the budget. Without any, each agent may begin with an equal part."""


class BudgetList(msgspec.Struct, frozen=True):
    """The budgets of a tenant and its keys."""

    tenant: str
    budgets: tuple[BudgetView, ...]


def budget_list(
    name: str, policy: Policy, record: TenantRecord | None, fleet: FleetBudgets | None
) -> BudgetList | None:
    """Return the budgets of a tenant; None if there is no such tenant.

    A created tenant whose tier the policy lacks has none in force: all its requests are refused. An identity provider's
    own tenant has those that agents use: only its tokens name its tier.

    Args:
        record: the record of a created tenant.
        fleet: the budgets in use, as the leader divides them; None: the leader has just been elected.
    """
    tenant = policy.tenants.get(name)
    if tenant is None:
        if record is None:
            in_use = () if fleet is None else ((key, each.budget) for key, each in fleet.budgets.items())
            shown = [(key, budget) for key, budget in in_use if key.tenant == name]
            return BudgetList(name, tuple(_views(shown, fleet))) if shown else None
        tier = policy.tier(record.tier)
        if tier is None:
            return BudgetList(name, ())
        tenant = record.under(tier)
    owners: list[tuple[str, tuple[Budget, ...]]] = [("", tenant.budgets)]
    if record is not None and name not in policy.tenants:
        owners += [(key.budget_key, key.budgets) for key in record.keys]
    found: dict[BudgetKey, Budget] = {}
    for key_id, budgets in owners:
        for region in policy.regions:
            found |= keyed_budgets(name, key_id, budgets, region)
    return BudgetList(name, tuple(_views(found.items(), fleet)))


def _views(found: Iterable[tuple[BudgetKey, Budget]], fleet: FleetBudgets | None) -> Iterable[BudgetView]:
    for key, budget in found:
        in_use = None if fleet is None else fleet.budgets.get(key)
        left = whole(budget) if in_use is None else in_use.available + in_use.held
        yield BudgetView(
            key.key_id,
            key.unit,
            budget.scope,
            key.region,
            budget.limit,
            whole(budget) if key.unit in PER_MINUTE else budget.limit,
            left,
            max(0.0, whole(budget) - left),
            () if in_use is None else tuple(_parts(in_use)),
        )


def _parts(budget: DividedBudget) -> Iterable[AgentPart]:
    for agent, account in sorted(budget.accounts.items()):
        yield AgentPart(agent, account.held, account.used, account.demand, account.announced_rate)
