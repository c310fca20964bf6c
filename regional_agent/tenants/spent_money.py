"""Keeps what budgets of money have spent on disk, so that the leader learns of it after the agent was killed.

The leader knows what was spent until the last exchange; the file adds the time until it was written, about
two seconds before a kill. Only what was spent after that is lost to the budget. The ledger has it.
"""

from __future__ import annotations

import asyncio
from heapq import nlargest
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.tenancy.budget_lease import BudgetKey, BudgetUse
from regional_agent.config.last_known_good import StateFile
from regional_agent.tenants.tenant_budgets import TenantBudgets

SAVE_S: Final = 2.0
"""Time (s) between two writes, if something was spent."""

MAX_COUNTERS: Final = 12_000
"""Maximum number of counters in the file; of more, those that have spent most. With the longest names a counter takes
about 600 bytes, and a file above MAX_FILE_BYTES would not be read at all."""

_log = structlog.get_logger(__name__)


class SpentCounter(msgspec.Struct, frozen=True, array_like=True):
    """What one counter has spent."""

    key: BudgetKey
    epoch: int
    period: int
    used: float
    tier: str = ""


class SpentCounters(msgspec.Struct, frozen=True):
    """The content of the file."""

    counters: tuple[SpentCounter, ...] = ()


class SpentMoney:
    """The file of one agent."""

    def __init__(self, state_dir: Path, budgets: TenantBudgets) -> None:
        """Use a file in `state_dir`; `load` reads it."""
        self._file = StateFile(state_dir / "spent-money", SpentCounters)
        self._budgets = budgets
        self._saved: tuple[int, float] = (0, 0.0)
        """Number and sum of the counters on disk."""
        self._saving = asyncio.Lock()

    def load(self) -> None:
        """Let the leader learn of what an earlier process of this agent has spent."""
        stored = self._file.load()
        if stored is not None:
            self._budgets.report_ended(
                BudgetUse(each.key, each.epoch, each.used, 0.0, 0.0, period=each.period, closed=True, tier=each.tier)
                for each in stored.counters
            )

    async def keep_saving(self) -> None:
        """Write the file every two seconds while money is spent."""
        while True:
            await asyncio.sleep(SAVE_S)
            await self.save()

    async def save(self) -> None:
        """Write the file, in a thread, if something was spent since the last time; a failure is logged.

        Waits for a write that runs, so that what was spent until the call is on disk at the return.
        """
        async with self._saving:
            uses = self._budgets.money_uses()
            now = (len(uses), sum(use.used for use in uses))
            if now == self._saved:
                return
            kept = uses if len(uses) <= MAX_COUNTERS else nlargest(MAX_COUNTERS, uses, key=lambda use: use.used)
            counters = tuple(SpentCounter(use.key, use.epoch, use.period, use.used, use.tier) for use in kept)
            try:
                await asyncio.to_thread(self._file.write, SpentCounters(counters))
            except OSError as error:
                _log.warning("spent money not written", file=str(self._file.path), error=error.strerror)
                return
            self._saved = now
