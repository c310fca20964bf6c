"""Totals of money by day and month, as the leader saves them: they survive the loss of the leader and of the agents."""

from __future__ import annotations

import msgspec

from penstock.tenancy.divided_budget import DividedBudget


class MoneyTotal(msgspec.Struct, frozen=True, array_like=True):
    """What is used of one budget of money in a day or month."""

    period: int
    """Number of the day or month (`period_of`)."""
    spent: float
    """Amount used, as reported."""
    counters: tuple[tuple[str, int, float], ...]
    """Agent, number of its counter, and what of the amount it reported: a later report is charged from there."""


def total_of(budget: DividedBudget) -> MoneyTotal:
    """Return the total of a budget of money."""
    counters = tuple((agent, epoch, used) for (agent, epoch), used in budget.spent().items())
    return MoneyTotal(budget.period, budget.budget.limit - budget.available - budget.held, counters)


def restored(budget: DividedBudget, total: MoneyTotal) -> None:
    """Charge a saved total to a budget in which nothing is charged yet."""
    budget.available -= total.spent
    budget.counters.update({(agent, epoch): used for agent, epoch, used in total.counters})
