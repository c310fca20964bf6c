"""The newest refusals of tenants: counted by budget and by reason, for an hour, the newest first."""

from __future__ import annotations

import pytest

from penstock.policy.kinds.budgets import BudgetScope, BudgetUnit
from penstock.tenancy.exceeded_budget import ExceededBudget
from penstock.tenancy.refusals import BudgetRefusals, OtherRefusalLog, OtherRefusals, RefusalLog

FORGET_S = 3600.0
MAX_KEPT, MAX_REPORTED = 1_000, 50
"""As documented, and not imported: a test fails if a tuned constant changes."""

REQUESTS, MONEY = BudgetUnit.REQUESTS, BudgetUnit.MONEY_PER_DAY


def refused(tenant: str, unit: BudgetUnit = REQUESTS, key_id: str = "", needed: float = 1.0) -> ExceededBudget:
    return ExceededBudget(tenant, key_id, unit, 60.0, BudgetScope.FLEET, needed, 0.25, 5.0)


def test_refusals_are_counted_by_budget() -> None:
    log = RefusalLog()
    for at, each in enumerate(
        (refused("a"), refused("b"), refused("a", MONEY), refused("a", key_id="k"), refused("a", needed=3.0))
    ):
        log.add(each, float(at))
    assert log.newest(10.0) == (
        BudgetRefusals("a", REQUESTS, 60.0, BudgetScope.FLEET, 2, 0.0, 4.0, 3.0, 0.25),
        BudgetRefusals("a", REQUESTS, 60.0, BudgetScope.FLEET, 1, 3.0, 3.0, 1.0, 0.25, "k"),
        BudgetRefusals("a", MONEY, 60.0, BudgetScope.FLEET, 1, 2.0, 2.0, 1.0, 0.25),
        BudgetRefusals("b", REQUESTS, 60.0, BudgetScope.FLEET, 1, 1.0, 1.0, 1.0, 0.25),
    )
    assert [each.tenant for each in log.newest(10.0, "b")] == ["b"]
    assert [each.last_at for each in log.newest(10.0, most=2)] == [4.0, 3.0]


def test_refusals_are_counted_by_reason() -> None:
    log = OtherRefusalLog()
    for at, (tenant, reason) in enumerate(
        (("a", "saturated"), ("b", "saturated"), ("a", "stalled"), ("a", "saturated"))
    ):
        log.add(tenant, reason, float(at))
    assert log.newest(10.0) == (
        OtherRefusals("a", "saturated", 2, 0.0, 3.0),
        OtherRefusals("a", "stalled", 1, 2.0, 2.0),
        OtherRefusals("b", "saturated", 1, 1.0, 1.0),
    )


@pytest.mark.parametrize(("later_s", "count"), [(FORGET_S, 2), (FORGET_S + 1.0, 1)])
def test_after_an_hour_the_count_begins_anew(later_s: float, count: int) -> None:
    budgets, others = RefusalLog(), OtherRefusalLog()
    for at in (100.0, 100.0 + later_s):
        budgets.add(refused("a"), at)
        others.add("a", "saturated", at)
    since = 100.0 if count > 1 else 100.0 + later_s
    assert [(each.count, each.since) for each in budgets.newest(100.0 + later_s)] == [(count, since)]
    assert [(each.count, each.since) for each in others.newest(100.0 + later_s)] == [(count, since)]
    assert len(budgets.newest(100.0 + 2 * later_s)) == len(others.newest(100.0 + 2 * later_s)) == count - 1


def test_the_oldest_are_dropped_first() -> None:
    budgets, others = RefusalLog(), OtherRefusalLog()
    for number in range(MAX_KEPT + 1):
        budgets.add(refused(f"t{number}"), 0.0)
        others.add(f"t{number}", "saturated", 0.0)
    for log in (budgets, others):
        assert [each.tenant for each in log.newest(0.0)] == [f"t{MAX_KEPT - at}" for at in range(MAX_REPORTED)]
    assert len(budgets.newest(0.0, most=2 * MAX_KEPT)) == MAX_KEPT
    assert budgets.newest(0.0, "t0") == ()
