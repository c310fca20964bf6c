from __future__ import annotations

import pytest

from penstock.retries.retry_budget import RetryBudget

MIN_PER_S, SHARE, WINDOW_S = 10.0, 0.2, 10.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def spend(budget: RetryBudget, now: float) -> int:
    spent = 0
    while budget.withdraw(now):
        spent += 1
    return spent


def test_a_few_retries_are_always_allowed() -> None:
    budget = RetryBudget(0.0)
    for _ in range(4):
        budget.request(0.0)
    assert spend(budget, 0.0) == MIN_PER_S * WINDOW_S


def test_more_requests_allow_more_retries() -> None:
    budget = RetryBudget(0.0)
    for _ in range(10_000):
        budget.request(1.0)
    assert spend(budget, 1.0) == 10_000 * SHARE + MIN_PER_S * WINDOW_S
    assert not budget.withdraw(WINDOW_S / 2 - 0.1)


def test_the_time_of_the_next_retry_is_known() -> None:
    budget = RetryBudget(0.0)
    spend(budget, 1.0)
    assert budget.more_in_s(1.0) == WINDOW_S / 2 - 1.0
    budget.withdraw(WINDOW_S / 2)
    later = WINDOW_S / 2 + budget.more_in_s(WINDOW_S / 2)
    assert spend(budget, later) > 0


@pytest.mark.parametrize(
    ("later", "asked_at", "retries"),
    [
        (4.9, 4.9, 301),
        (5.0, 5.0, 301),
        (9.9, 9.9, 301),
        (10.0, 10.0, 101),
        # The half window began at 0 and not with the later requests.
        (4.0, 9.0, 301),
        (4.0, 14.0, 100),
    ],
)
def test_requests_count_in_their_half_window_and_in_the_one_after_it(
    later: float, asked_at: float, retries: int
) -> None:
    budget = RetryBudget(0.0)
    for at in [0.0] * 1000 + [later] * 5:
        budget.request(at)
    assert spend(budget, asked_at) == retries


@pytest.mark.parametrize(("later", "retries"), [(4.9, 0), (9.9, 0), (10.0, 100)])
def test_retries_count_in_their_half_window_and_in_the_one_after_it(later: float, retries: int) -> None:
    budget = RetryBudget(0.0)
    assert spend(budget, 0.0) == 100
    assert spend(budget, later) == retries


def test_what_was_spent_is_forgotten_with_the_window() -> None:
    budget = RetryBudget(0.0)
    for _ in range(1000):
        budget.request(0.0)
    spend(budget, 0.0)
    assert not budget.withdraw(WINDOW_S / 2), "the half before still counts"
    assert spend(budget, 3 * WINDOW_S) == MIN_PER_S * WINDOW_S, "neither requests nor retries of long ago count"
