"""The saving of the totals of money."""

from __future__ import annotations

from typing import cast
from zlib import crc32

import pytest
from structlog.testing import capture_logs

from adapters.store import keys
from adapters.store.config_store import Put
from control_plane.tenants import money_checkpoint
from control_plane.tenants.money_checkpoint import MAX_WRITES, SHARDS, MoneyCheckpoint
from lab.memory_store import MemoryStore
from penstock.policy.kinds.budgets import BudgetUnit
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.divided_budget import MoneyTotal
from penstock.tenancy.fleet_budgets import FleetBudgets


class Totals:
    """Totals as the leader has them."""

    def __init__(self) -> None:
        self.known: dict[BudgetKey, MoneyTotal] = {}

    def totals(self) -> dict[BudgetKey, MoneyTotal]:
        return self.known


def tenant_of(shard: int) -> str:
    return next(name for number in range(100_000) if crc32((name := f"t{number}").encode()) % SHARDS == shard)


async def test_shards_that_are_too_large_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(money_checkpoint, "SAVE_S", 0.0)
    store, fleet = MemoryStore(), Totals()
    await store.commit((), (Put(keys.LEADER, b"x"),))
    leader = await store.get(keys.LEADER)
    assert leader is not None
    large = MoneyTotal(1, 1.0, tuple((f"eu/{number}" + "a" * 100, 1, 1.0) for number in range(12_000)))
    money = [BudgetKey(tenant_of(shard), "", BudgetUnit.MONEY_PER_DAY, "") for shard in range(MAX_WRITES + 2)]
    fleet.known = dict.fromkeys(money[:MAX_WRITES], large) | {key: MoneyTotal(1, 5.0, ()) for key in money[-2:]}
    checkpoint = MoneyCheckpoint(store)
    with capture_logs() as logs:
        for _ in range(2):
            await checkpoint.save(cast(FleetBudgets, fleet), leader.create_revision)
    assert "larger than the store takes" in logs[0]["reason"]
    assert set(await MoneyCheckpoint(store).load()) == set(money[-2:])
    await store.close()
