"""CPU of a chat with tiers, budgets, prices and the ledger, beside one with the shipped policy, which has none."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab.bench.router.chat import chat_request
from lab.bench.router.policy_cost import Asked, Document, PolicyCost, measure_policies
from lab.bench.router.rounds import Progress, Setup, clients
from lab.bench.site import REGION
from lab.planet.bundle import bench_router_bundle
from penstock.policy.kinds.budgets import BudgetUnit

OFF, PERMISSIONS, BUDGETS, MONEY, LEDGER, ALL = (
    "without",
    "tiers with permissions",
    "the same with four budgets",
    "the same with money and prices",
    "ledger alone",
    "all",
)

_TENANTS_FILE = "tenants.yaml"
_PLENTY = 1e12
"""A limit that no request meets."""

_UNITS = (BudgetUnit.REQUESTS, BudgetUnit.TOKENS, BudgetUnit.GPU_SECONDS, BudgetUnit.CONCURRENT_REQUESTS)
_PRICES: Document = {
    "kind": "Prices",
    "name": "bench",
    "valid_from": "2026-01-01",
    "currency": "EUR",
    "models": [{"model": "*", "per_million_input_tokens": 1.0, "per_million_output_tokens": 2.0}],
}


def measure_tenants(directory: Path, core: int, setup: Setup, progress: Progress) -> PolicyCost:
    """Measure one agent for each policy."""
    store: Document = {"kind": "UsageStore", "name": "bench", "url": f"file://{directory}/usage", "regions": [REGION]}
    priced = {"prices.yaml": [_PRICES]}
    budgets = [unit.value for unit in _UNITS]
    money = [*budgets, BudgetUnit.MONEY_PER_DAY.value]
    policies = {
        OFF: {},
        PERMISSIONS: _tiers([]),
        BUDGETS: _tiers(budgets),
        MONEY: _tiers(money) | priced,
        LEDGER: {"usage.yaml": [store]},
        ALL: _tiers(money) | priced | {"usage.yaml": [store]},
    }
    chats = tuple(chat_request(client, stream=False) for client in clients())
    return measure_policies(directory, core, policies, [Asked(name, name, chats) for name in policies], setup, progress)


def _tiers(units: list[str]) -> dict[str, list[Document]]:
    """Return the shipped tenants, each with a tier of its own that has a budget of each of `units`."""
    budgets = [{"unit": unit, "limit": _PLENTY} for unit in units]
    tenants, tiers = [], []
    for tenant in yaml.safe_load_all(bench_router_bundle(continue_streams=False)[_TENANTS_FILE]):
        name = f"of-{tenant['name']}"
        tiers.append(
            {"kind": "Tier", "name": name, "data_class": tenant["data_class"]}
            | {"models": ["llama*"], "routes": ["openai*"], "budgets": budgets}
        )
        tenants.append({key: value for key, value in tenant.items() if key != "priority"} | {"tier": name})
    return {_TENANTS_FILE: tenants, "tiers.yaml": tiers}
