"""What a request needs of budgets, and what it used."""

from __future__ import annotations

import pytest

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.answers.token_counts import Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.ledger.prices import Rate
from penstock.policy.kinds.billing import ModelPrice
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.request_amounts import estimated_amounts, used_amounts

ESTIMATE = WorkEstimate("t", "m", Cost(CostUnit.TOKEN, 0.001, 0.01), CostInputs(0), Work(0.3, 2.0), True)
PRICE = Rate(ModelPrice("*", 1e6, 0.5e6, 2e6, per_request=7.0))


def account(outcome: Outcome, usage: Usage | None = None, status: int = 200) -> Account:
    found = Account(outcome, "", status, 1.0 if status else None, 3.0)
    found.usage = usage
    return found


def session(usage: Usage) -> Account:
    """The account of a WebSocket."""
    found = Account(Outcome.OK, "", 101, None, 3.0)
    found.usage = usage
    return found


def numbers(of: Amounts) -> tuple[float, ...]:
    return of.requests, of.input_tokens, of.cached_tokens, of.output_tokens, of.gpu_s, of.money


def test_the_estimate_is_of_tokens_time_and_money() -> None:
    needed = numbers(estimated_amounts(ESTIMATE, 2.0, PRICE))
    assert needed == pytest.approx((1.0, 300.0, 0.0, 200.0, 4.6, 300.0 + 400.0 + 7.0))


@pytest.mark.parametrize(
    ("ask", "output_tokens"), [(CostInputs(0), 8 * 200.0), (CostInputs(0, max_tokens=50, count=3), 150.0)]
)
def test_at_most_it_costs_the_longest_answer_that_it_permits(ask: CostInputs, output_tokens: float) -> None:
    estimate = WorkEstimate("t", "m", ESTIMATE.cost, ask, ESTIMATE.work, True)
    most = estimated_amounts(estimate, 2.0, PRICE).most_money
    assert most == pytest.approx(300.0 + 2.0 * output_tokens + 7.0)


def test_a_request_that_counts_tokens_needs_none() -> None:
    counts = WorkEstimate(
        "t", "m", ESTIMATE.cost, CostInputs(0, answers=False, uses_tokens=False), ESTIMATE.work, False
    )
    assert numbers(estimated_amounts(counts, 2.0, PRICE)) == (1.0, 0.0, 0.0, 0.0, 0.0, 7.0)


USED = Usage(100, 20, 40)


@pytest.mark.parametrize(
    ("of", "gpu_s", "started", "expected"),
    [
        (account(Outcome.OK, USED), 1.5, True, (1.0, 100.0, 40.0, 20.0, 1.5, 60.0 + 20.0 + 40.0 + 7.0)),
        (account(Outcome.CLIENT_LEFT, Usage(100, 3)), 0.5, True, (1.0, 100.0, 0.0, 3.0, 0.5, 100.0 + 6.0 + 7.0)),
        (account(Outcome.OK, USED), None, True, (1.0, 100.0, 40.0, 20.0, 0.52, 127.0)),
        (account(Outcome.ENGINE_CUT, USED), 1.5, True, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        (account(Outcome.STALLED, status=0), 9.0, True, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        (account(Outcome.REFUSED, status=0), None, False, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        (account(Outcome.CLIENT_LEFT, status=0), None, False, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        (account(Outcome.CLIENT_LEFT, status=0), 0.5, True, (1.0, 0.0, 0.0, 0.0, 0.5, 0.0)),
        (account(Outcome.CLIENT_ERROR, status=400), 0.1, True, (1.0, 0.0, 0.0, 0.0, 0.1, 0.0)),
        (session(USED), 1.5, True, (1.0, 100.0, 40.0, 20.0, 1.5, 127.0)),
    ],
    ids=[
        "served",
        "left",
        "forwarded",
        "cut",
        "stalled",
        "refused",
        "left the queue",
        "left early",
        "its own error",
        "session",
    ],
)
def test_what_was_used_follows_from_the_account(
    of: Account, gpu_s: float | None, started: bool, expected: tuple[float, ...]
) -> None:
    used = used_amounts(of, ESTIMATE, gpu_s, 2.0, PRICE, started=started)
    assert numbers(used) == pytest.approx(expected)
