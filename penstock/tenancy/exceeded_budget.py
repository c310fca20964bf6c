"""The refusal of a request that a budget lacks the amount for: what clients read of budgets."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.policy.kinds.budgets import BudgetScope, BudgetUnit
from penstock.tenancy.budget_lease import MONEY, PER_MINUTE
from penstock.tenancy.budget_meter import BudgetMeter
from penstock.tenancy.budget_reservations import SenderBudgets

_WORDS: Final = {
    BudgetUnit.REQUESTS: "requests per minute",
    BudgetUnit.INPUT_TOKENS: "input tokens per minute",
    BudgetUnit.OUTPUT_TOKENS: "output tokens per minute",
    BudgetUnit.TOKENS: "tokens per minute",
    BudgetUnit.GPU_SECONDS: "GPU seconds per minute",
    BudgetUnit.CONCURRENT_REQUESTS: "concurrent requests",
    BudgetUnit.MONEY_PER_DAY: "money per day",
    BudgetUnit.MONEY_PER_MONTH: "money per month",
}


class BudgetState(msgspec.Struct, frozen=True):
    """What is left of a budget per minute."""

    unit: BudgetUnit
    limit: float
    """Amount that may be used at once after a pause."""
    remaining: float
    reset_s: float
    """Time (s) after which `remaining` is `limit`, if no request follows."""


class ExceededBudget(msgspec.Struct, frozen=True):
    """The budget because of which a request was refused."""

    tenant: str
    key_id: str
    """Identifier of the key that the budget limits; empty for a budget of the tenant."""
    unit: BudgetUnit
    limit: float
    scope: BudgetScope
    needed: float
    """Amount that the request needs, by its estimate."""
    left: float
    """Amount that is left, as far as the agent knows."""
    retry_after_s: float
    waits_for_lease: bool = False
    """Whether the fleet has the amount, and the agent lacks a lease of it."""
    states: tuple[BudgetState, ...] = ()
    """What is left of the sender's budgets per minute."""
    is_without_leader: bool = False
    """Whether no leader divides the budget, so that the agent has a part that does not change."""

    @property
    def is_money(self) -> bool:
        """Whether the budget is of money."""
        return self.unit in MONEY

    def describe(self) -> str:
        """Return the message for the client."""
        holder = f"key {self.key_id}" if self.key_id else f"tenant {self.tenant}"
        where = "in this region" if self.scope is BudgetScope.REGION else "for the fleet"
        limit = f"the budget of {self.limit:.15g} {_WORDS[self.unit]} {where}"
        if self.unit is BudgetUnit.CONCURRENT_REQUESTS:
            return f"{holder} has used up {limit}: as many requests run; retry when one has ended"
        what = "has no part yet, at this agent, of" if self.waits_for_lease else "has used up"
        needed = f"the request needs about {amount_text(self.needed)}"
        if self.is_money and self.needed > self.limit:
            return f"{holder} cannot send this request with {limit}: {needed}; lower max_tokens, or raise the budget"
        left = f"{amount_text(max(0.0, self.left))} is left"
        if self.is_without_leader:
            left += " of this agent's part (no leader divides the budget now)"
        return f"{holder} {what} {limit}: {needed}, {left}; retry in {_duration(self.retry_after_s)}"


def exceeded(budgets: SenderBudgets, meter: BudgetMeter, needed: float, now: float, wall: float) -> ExceededBudget:
    """Return the refusal of a request because of `meter`, of which it needs `needed`.

    Args:
        budgets: all budgets of the sender.
        now: monotonic (s).
        wall: Unix time (s).
    """
    key, budget = meter.key, meter.budget
    return ExceededBudget(
        key.tenant,
        key.key_id,
        key.unit,
        budget.limit,
        budget.scope,
        needed,
        meter.left(now),
        meter.retry_after_s(needed, now, wall),
        meter.waits_for_lease(needed, now),
        states_of(budgets, now),
        meter.lost,
    )


def states_of(budgets: SenderBudgets, now: float) -> tuple[BudgetState, ...]:
    """Return what is left of the budgets per minute."""
    # `remaining` is evaluated before `reset_s`, which describes the same time.
    return tuple(
        BudgetState(meter.key.unit, meter.budget.largest_burst, meter.remaining(now), meter.reset_s(now))
        for meter in budgets.meters
        if meter.key.unit in PER_MINUTE
    )


def amount_text(amount: float) -> str:
    """Return an amount of a budget in digits, whole from 100 on."""
    return f"{amount:.0f}" if amount >= 100.0 else f"{amount:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{max(0.001, seconds):.3g} s"
    minutes = round(seconds / 60.0)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
