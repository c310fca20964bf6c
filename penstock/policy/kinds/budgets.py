"""Budgets: what a tenant or a key may use in a period of time."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from penstock.policy.fields import Conflict, PolicyStruct, bounds


class BudgetUnit(StrEnum):
    """What a budget limits."""

    REQUESTS = "requests_per_minute"
    """Requests that start."""
    INPUT_TOKENS = "input_tokens_per_minute"
    """Tokens of prompts; those that the engine reports as cached count with `cached_weight`."""
    OUTPUT_TOKENS = "output_tokens_per_minute"
    """Tokens of answers."""
    TOKENS = "tokens_per_minute"
    """Tokens of prompts and answers."""
    GPU_SECONDS = "gpu_seconds_per_minute"
    """GPU time: for a forwarded request, and until a request ends, the estimated work."""
    CONCURRENT_REQUESTS = "concurrent_requests"
    """Requests that run at once, from admission to the end of the response."""
    MONEY_PER_DAY = "money_per_day"
    """Cost by the price list in force, per day (UTC)."""
    MONEY_PER_MONTH = "money_per_month"
    """Cost by the price list in force, per calendar month (UTC)."""


class BudgetScope(StrEnum):
    """Where a budget holds."""

    REGION = "region"
    """In each region in which the tenant's clients enter."""
    FLEET = "fleet"
    """In all regions together."""


class OnLoss(StrEnum):
    """Rates of a tenant's budgets at an agent that has had no leader for `hold_s`."""

    SHARE = "share"
    """An equal part of the budget for each agent that the budget covers."""
    KEEP = "keep"
    """The last rates, for as long as no leader is reached."""
    REFUSE = "refuse"
    """None: requests that the budget limits are refused with 429 `quota_exceeded`."""


class Budget(PolicyStruct, frozen=True):
    """One limit of a tenant or of a key. Requests beyond it are refused with 429 `quota_exceeded`."""

    unit: BudgetUnit
    """What is limited, and per which time."""
    limit: Annotated[float, bounds(gt=0, le=1e15)]
    """Amount per minute, day or month, or the number of concurrent requests."""
    scope: BudgetScope = BudgetScope.FLEET
    """Whether the limit holds in each region or for the fleet."""
    burst: Annotated[float, bounds(gt=0, le=1e15)] | None = None
    """Amount of a budget per minute that may be used at once after a pause; null: the amount of one minute."""
    cached_weight: Annotated[float, bounds(ge=0, le=1)] = 1.0
    """Amount that one cached token of the prompt counts in a budget of tokens."""

    @property
    def per_s(self) -> float:
        """Rate (units per second) of a budget per minute."""
        return self.limit / 60.0

    @property
    def largest_burst(self) -> float:
        """Amount of a budget per minute that may be used at once after a pause."""
        return self.limit if self.burst is None else self.burst


def unusable_budget(budgets: Iterable[Budget]) -> Conflict | None:
    """Return the error of budgets of which one permits no request, or two limit the same: only the smaller one would
    have an effect."""
    seen: set[tuple[BudgetUnit, BudgetScope]] = set()
    for budget in budgets:
        if budget.unit is BudgetUnit.CONCURRENT_REQUESTS and budget.limit < 1.0:
            return Conflict(f"permits {budget.limit:g} {budget.unit}, so that none runs", "write at least 1")
        what = (budget.unit, budget.scope)
        if what in seen:
            return Conflict(f"has two budgets of {budget.unit} for the {budget.scope}", "keep the smaller one")
        seen.add(what)
    return None
