"""The totals of money per day and month, saved in the store, so that they survive the loss of leader and agents.

The totals are divided into shards by tenant. A shard is written only if a total in it has changed clearly, or a while
ago, and only by the leader in office.
"""

from __future__ import annotations

import time
from zlib import crc32

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.divided_budget import MoneyTotal
from penstock.tenancy.fleet_budgets import FleetBudgets

SHARDS = 64
"""Number of shards."""

SAVE_S = 2.0
"""Interval (s) at which changed totals are saved."""

AT_LEAST_S = 30.0
"""Time (s) after which also a small change is saved."""

CLEAR_CHANGE = 0.01
"""Part of a total by which it has changed clearly."""

MAX_WRITES = 8
"""Maximum number of shards that one save writes."""

_log = structlog.get_logger(__name__)


class SavedTotal(msgspec.Struct, frozen=True, array_like=True):
    """The total of one budget."""

    key: BudgetKey
    total: MoneyTotal


class SavedTotals(msgspec.Struct, frozen=True):
    """One shard."""

    totals: tuple[SavedTotal, ...] = ()


class MoneyCheckpoint:
    """Saves and loads the totals of money.

    Args:
        store: the fleet's configuration store.
    """

    def __init__(self, store: ConfigStore) -> None:
        self._store = store
        self._saved: dict[int, dict[BudgetKey, MoneyTotal]] = {}
        self._written_at: dict[int, float] = {}
        """Time (s, monotonic) of the last write or, of a shard that is too large, the last try."""
        self._saved_at = 0.0

    async def load(self) -> dict[BudgetKey, MoneyTotal]:
        """Read all totals, at the start of a leadership.

        Raises:
            StoreError: the store is unavailable.
        """
        listed = await self._store.list(keys.MONEY_TOTALS)
        self._saved, self._written_at = {}, {}
        found: dict[BudgetKey, MoneyTotal] = {}
        for item in listed.items:
            try:
                shard = decode(item.value, SavedTotals)
            except CodecError as error:
                _log.warning("totals of money ignored", key=item.key, reason=str(error))
                continue
            found.update((each.key, each.total) for each in shard.totals)
        for key, total in found.items():
            self._saved.setdefault(_shard_of(key), {})[key] = total
        return found

    async def save(self, fleet: FleetBudgets, epoch: int) -> None:
        """Save what has changed, unless that was done a moment ago.

        Args:
            epoch: fencing epoch of the leader.
        """
        now = time.monotonic()
        if now - self._saved_at < SAVE_S:
            return
        self._saved_at = now
        shards: dict[int, dict[BudgetKey, MoneyTotal]] = {}
        for key, total in fleet.totals().items():
            shards.setdefault(_shard_of(key), {})[key] = total
        due = [shard for shard in shards if self._is_due(shard, shards[shard], now)]
        due.sort(key=lambda shard: self._written_at.get(shard, 0.0))
        for shard in due[:MAX_WRITES]:
            content = SavedTotals(tuple(SavedTotal(key, total) for key, total in shards[shard].items()))
            try:
                value = encode(content)
            except CodecError as error:
                _log.error("totals of money not saved", shard=shard, reason=str(error))
                # The other shards come first next time.
                self._written_at[shard] = now
                continue
            try:
                written = await self._store.commit(
                    [SameKey(keys.LEADER, epoch)], [Put(keys.money_totals(shard), value)]
                )
            except StoreError as error:
                _log.warning("totals of money not saved", reason=str(error))
                return
            if not written.succeeded:
                return
            self._saved[shard], self._written_at[shard] = shards[shard], now

    def _is_due(self, shard: int, totals: dict[BudgetKey, MoneyTotal], now: float) -> bool:
        saved = self._saved.get(shard, {})
        if totals == saved:
            return False
        if now - self._written_at.get(shard, -AT_LEAST_S) >= AT_LEAST_S:
            return True
        return any(_differs_clearly(total, saved.get(key)) for key, total in totals.items())


def _differs_clearly(total: MoneyTotal, saved: MoneyTotal | None) -> bool:
    if saved is None or saved.period != total.period:
        return True
    return abs(total.spent - saved.spent) > CLEAR_CHANGE * max(total.spent, saved.spent)


def _shard_of(key: BudgetKey) -> int:
    return crc32(key.tenant.encode()) % SHARDS
