"""An agent's exchanges with the leader: what it reports, which answers count, and with what a counter starts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.agent_leases import AgentLeases, LeaseHolder
from penstock.tenancy.budget_lease import BudgetKey, BudgetUse
from penstock.wire.budget_exchange import LEASE_S, MAX_WAIT_S, ExchangeAnswer, UsedBudget

FIRST_ANSWER_S, NEVER_S = 2.0, 1e9
"""As documented, and not imported: a test fails if a tuned constant changes."""


class Around:
    """Two registered agents in the region, four in the fleet."""

    def __init__(self) -> None:
        self.leads = True
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def has_leader(self) -> bool:
        return self.leads

    def registered(self, region: str) -> int:
        return 2 if region else 4


KEY = BudgetKey("team", "", BudgetUnit.REQUESTS, "")
PLACES = BudgetKey("team", "", BudgetUnit.CONCURRENT_REQUESTS, "")
LIMIT, PLACE_LIMIT = Budget(BudgetUnit.REQUESTS, 600.0), Budget(BudgetUnit.CONCURRENT_REQUESTS, 10.0)
USE = BudgetUse(KEY, 7, 5.0, 3.0, 1.0)


def started() -> AgentLeases:
    return AgentLeases(LeaseHolder("a", "eu", 7), Around(), 100.0)


def answer(number: int, leader: int = 1, **members: object) -> ExchangeAnswer:
    return ExchangeAnswer(leader, number, (8, 3), (2, 1), **members)  # type: ignore[arg-type]


def test_a_counter_is_reported_again_when_it_has_changed() -> None:
    leases = started()

    def reports(use: BudgetUse, now: float = 101.0) -> bool:
        found = leases.request([use], now)
        leases.accept(answer(found.number))
        return found.uses == (use,)

    assert reports(USE)
    assert not reports(USE)
    assert not reports(replace(USE, demand_per_s=0.8)), "a fifth less"
    assert reports(replace(USE, demand_per_s=0.79))
    assert reports(replace(USE, demand_per_s=0.79, rate_per_s=9.0))
    for changed in ({"used": 6.0}, {"unspent": 2.0}, {"period": 3}, {"epoch": 8}):
        assert reports(replace(USE, **changed)), changed  # type: ignore[arg-type]
        assert reports(USE)
    short = replace(USE, unspent=0.5)
    assert reports(short)
    assert reports(short), "it is not enough for a request"
    assert reports(USE)
    assert reports(replace(USE, closed=True))
    assert reports(USE), "a counter that ended is forgotten"
    assert not reports(USE, 101.0 + LEASE_S - 0.1)
    assert reports(USE, 101.0 + 2 * LEASE_S), "the leases have ended"


def test_only_the_answer_to_the_newest_request_of_the_newest_leader_counts() -> None:
    leases = started()
    leases.request([USE], 101.0)
    request = leases.request([USE], 102.0)
    assert (request.agent, request.region, request.epoch, request.number, request.answered, request.leader) == (
        "a", "eu", 7, 2, 0, 0
    )  # fmt: skip
    assert leases.accept(answer(1)) is None
    assert leases.accept(answer(2, leader=3)) == [USE]
    assert leases.accept(answer(2, leader=3)) is None, "it was applied"
    assert (leases.agents, leases.agents_of(replace(KEY, region="eu"))) == (8, 3)
    request = leases.request([], 103.0)
    assert (request.number, request.answered, request.leader, request.uses) == (3, 2, 3, ())
    assert leases.accept(answer(3, leader=2)) is None
    assert leases.request([USE], 104.0).uses == (), "the leader has it"
    assert leases.accept(answer(4, leader=4)) == []
    assert leases.request([USE], 105.0).uses == (USE,), "a new leader has nothing"


def test_the_leader_may_delay_its_answer_until_it_has_news() -> None:
    leases = started()
    assert leases.request([], 101.0).wait_s == 0.0, "the first answer is due at once"
    leases.accept(answer(1, is_complete=True))
    assert leases.request([USE], 102.0).wait_s == 1.0, "the time of the next report"
    assert leases.request([], 103.0).wait_s == MAX_WAIT_S == 5.0


def test_leases_end_ten_seconds_after_the_request() -> None:
    leases = started()
    assert leases.ended_s(100.0 + FIRST_ANSWER_S - 0.1) is None
    assert leases.ended_s(100.0 + FIRST_ANSWER_S) == NEVER_S
    leases.request([], 105.0)
    leases.accept(answer(1))
    assert leases.ended_s(114.9) is None
    assert leases.ended_s(115.0) == 0.0
    assert leases.ended_s(118.0) == 3.0


def test_without_a_leader_no_answer_is_expected() -> None:
    around = Around()
    around.leads = False
    leases = AgentLeases(LeaseHolder("a", "eu", 7), around, 100.0)
    assert leases.ended_s(100.0) == NEVER_S
    opening = leases.opening(KEY, LIMIT, 100.0)
    assert (opening.number, opening.amount, opening.keep, opening.rate_per_s) == (0, 150.0, 150.0, 2.5)
    assert leases.opening(replace(KEY, region="eu"), LIMIT, 100.0).amount == 300.0
    # A small budget: at least one request each.
    assert leases.opening(KEY, Budget(BudgetUnit.REQUESTS, 2.0), 100.0).amount == 1.0
    places = leases.opening(PLACES, PLACE_LIMIT, 100.0)
    assert (places.amount, places.rate_per_s) == (2.0, 2.0)
    assert leases.opening(PLACES, Budget(BudgetUnit.CONCURRENT_REQUESTS, 3.0), 100.0).amount == 1.0
    assert around.woken == 5


def test_a_counter_starts_with_nothing_while_the_first_answer_is_due() -> None:
    opening = started().opening(KEY, LIMIT, 100.5)
    assert (opening.amount, opening.rate_per_s) == (0.0, 2.5)


@pytest.mark.parametrize("later", [1, 2])
def test_a_budget_that_others_use_has_a_reserve_and_one_that_none_uses_an_equal_part(later: int) -> None:
    leases = started()
    leases.request([], 101.0)
    leases.accept(answer(1, announced=(UsedBudget(KEY, True), UsedBudget(PLACES, True)), is_complete=True))
    large = Budget(BudgetUnit.REQUESTS, 6000.0)

    def amounts() -> tuple[float, float]:
        return leases.opening(KEY, large, 102.0).amount, leases.opening(replace(KEY, tenant="t"), large, 102.0).amount

    # Three percent of the budget, and the whole of it, divided by eight agents.
    assert amounts() == (22.0, 750.0)
    places = leases.opening(PLACES, PLACE_LIMIT, 102.0)
    assert (places.amount, places.rate_per_s) == (0.0, 0.0)
    # Another leader has to announce everything before what it did not announce is unused.
    leases.request([], 103.0)
    leases.accept(answer(2, leader=later))
    assert amounts() == (22.0, 750.0)
    leases.request([], 104.0)
    leases.accept(answer(3, leader=later, announced=(UsedBudget(KEY, False),), is_complete=True))
    assert amounts() == (750.0, 750.0)
