"""The meter of one budget: what it admits, and that reservations come back."""

from __future__ import annotations

from heapq import heappop, heappush
from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.prices import Rate
from penstock.policy.kinds.billing import ModelPrice
from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit, OnLoss
from penstock.policy.kinds.tenants import Tenant
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.budget_lease import MONEY, BudgetKey, BudgetLease, keyed_budgets, period_of
from penstock.tenancy.budget_meter import BudgetMeter
from penstock.tenancy.budget_reservations import BudgetReservation, SenderBudgets

DEMAND_S, EXCHANGE_S, FIRST_LEASE_S, KNOWN_S, LEASE_WAIT_S, PAUSE_S = 2.0, 1.0, 1.0, 0.2, 0.5, 2.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

DAY_S = 86_400.0
NOON = 1_000 * DAY_S + DAY_S / 2
"""Unix time (s)."""


def key_of(unit: BudgetUnit) -> BudgetKey:
    return BudgetKey("acme", "", unit, "")


def lease(unit: BudgetUnit, amount: float, keep: float = inf, rate_per_s: float = 0.0, period: int = 0) -> BudgetLease:
    return BudgetLease(key_of(unit), 1, amount, keep, rate_per_s, period)


def meter(
    unit: BudgetUnit = BudgetUnit.REQUESTS,
    limit: float = 60.0,
    amount: float = 10.0,
    rate_per_s: float = 1.0,
    burst: float | None = None,
) -> BudgetMeter:
    opening = lease(unit, 0.0)
    of = BudgetMeter(key_of(unit), Budget(unit, limit, burst=burst), opening, 0.0, NOON)
    of.apply(lease(unit, amount, amount, rate_per_s, of.period), 0.0)
    return of


def admitted(of: BudgetMeter, amount: float, now: float) -> bool:
    if of.lacks(amount, now):
        of.refuse(amount, now)
        return False
    of.take(amount, now)
    return True


class TestWithLeader:
    @pytest.mark.parametrize(("limit", "price"), [(3.0, 0.15), (1.0, 0.1), (0.3, 0.1), (7.0, 0.07)])
    def test_a_budget_admits_as_many_requests_as_it_pays_for(self, limit: float, price: float) -> None:
        """Although sums of fractions are not exact; the last one would be told to come again until the day ends."""
        of = meter(BudgetUnit.MONEY_PER_DAY, limit, limit)
        count = 0
        while admitted(of, price, 0.0):
            of.settle(price, price, 0.0)
            count += 1
        assert count == round(limit / price)
        assert of.is_idle(1.0)

    def test_only_what_the_leader_granted_is_admitted_whatever_the_time(self) -> None:
        of = meter(amount=3.0)
        assert [admitted(of, 1.0, now) for now in (0.0, 1.0, 100.0, 1000.0)] == [True, True, True, False]
        of.apply(lease(of.key.unit, 2.0), 1000.0)
        assert [admitted(of, 1.0, 1000.0) for _ in range(3)] == [True, True, False]
        assert of.use(7, 1000.0).used == 5.0

    def test_demand_is_a_mean_of_the_last_seconds(self) -> None:
        of = meter(amount=0.0)
        for _ in range(10):
            assert not admitted(of, 1.0, 0.0)
        assert of.use(1, DEMAND_S).demand_per_s == pytest.approx(10.0 / DEMAND_S * (1.0 - exp(-1.0)))
        assert of.use(1, 2.0 * DEMAND_S).demand_per_s == pytest.approx(10.0 / DEMAND_S * (1.0 - exp(-1.0)) * exp(-1.0))

    def test_while_no_request_lacked_an_amount_one_may_wait_for_a_lease(self) -> None:
        of = meter(limit=6_000.0, amount=100.0)
        for second in range(10):
            assert admitted(of, 10.0, float(second))
        assert not admitted(of, 10.0, 9.5)
        assert of.awaits_lease(10.0, 9.5), "the agent was used all the time"
        of.apply(lease(of.key.unit, 10.0), 9.6)
        assert admitted(of, 10.0, 9.6)
        for tenth in range(98, 130):
            assert not admitted(of, 1.0, tenth / 10.0)
            assert of.awaits_lease(1.0, tenth / 10.0) == (tenth < 105), "the budget is used up"

    def test_the_first_requests_and_those_after_a_pause_may_wait_for_a_lease(self) -> None:
        of = meter(amount=0.0)
        assert not admitted(of, 1.0, 0.0)
        assert of.awaits_lease(1.0, 0.0)
        assert of.awaits_lease(1.0, FIRST_LEASE_S - 0.01)
        assert not of.awaits_lease(1.0, FIRST_LEASE_S)
        later = PAUSE_S - 0.1
        assert not admitted(of, 1.0, later)
        assert not of.awaits_lease(1.0, later)
        later += PAUSE_S
        assert not admitted(of, 1.0, later)
        assert of.awaits_lease(1.0, later)
        of.lose(later, 2, later)
        assert not of.awaits_lease(1.0, later), "no lease comes without a leader"

    def test_a_request_may_wait_for_a_place_while_one_is_free_elsewhere(self) -> None:
        of = meter(BudgetUnit.CONCURRENT_REQUESTS, limit=3.0, amount=1.0)
        assert admitted(of, 1.0, 0.0)
        assert not admitted(of, 1.0, 0.0)
        assert of.awaits_lease(1.0, 0.0)
        of.apply(BudgetLease(of.key, 1, 0.0, 1.0, 0.0, rest=0.0), 1.0)
        assert not of.awaits_lease(1.0, 1.0 + KNOWN_S), "all are taken"
        assert of.awaits_lease(1.0, 1.1 + KNOWN_S), "which may have changed"
        of.settle(1.0, 1.0, 2.0)
        of.apply(BudgetLease(of.key, 2, 2.0, 3.0, 0.0, rest=0.0), 2.0)
        assert [admitted(of, 1.0, 2.0) for _ in range(4)] == [True, True, True, False]
        assert not of.awaits_lease(1.0, 9.0), "all run here"

    def test_what_waits_for_a_place_is_reported_once(self) -> None:
        of = meter(BudgetUnit.CONCURRENT_REQUESTS, limit=3.0, amount=0.0)
        of.wanted = 2
        assert [of.use(1, now).wanted for now in (1.0, 2.0)] == [2, 0]

    def test_no_request_waits_for_the_end_of_another_or_for_time(self) -> None:
        places = meter(BudgetUnit.CONCURRENT_REQUESTS, limit=1.0, amount=1.0)
        assert admitted(places, 1.0, 0.0)
        assert not admitted(places, 1.0, 0.0)
        assert not places.awaits_lease(1.0, 0.0)
        used_up = meter(amount=1.0, burst=1.0)
        assert admitted(used_up, 1.0, 0.0)
        assert not admitted(used_up, 1.0, 0.0)
        assert not used_up.awaits_lease(1.0, 0.0)

    def test_a_debt_is_repaid_by_leases_before_the_next_request(self) -> None:
        of = meter(BudgetUnit.TOKENS, amount=100.0, limit=1000.0)
        assert admitted(of, 60.0, 0.0)
        of.settle(60.0, 250.0, 1.0)
        assert of.unspent == -150.0
        of.apply(lease(of.key.unit, 150.0), 1.0)
        assert not admitted(of, 1.0, 1.0)
        of.apply(lease(of.key.unit, 10.0), 1.0)
        assert admitted(of, 10.0, 1.0)

    def test_a_wrong_report_of_an_engine_costs_minutes_and_not_days(self) -> None:
        of = meter(BudgetUnit.TOKENS, amount=100.0, limit=1000.0)
        of.take(50.0, 0.0)
        of.settle(50.0, 1e9, 1.0)
        assert of.unspent == 50.0 - 10_000.0
        assert of.used == 10_050.0, "the leader charges what the agent owes"

    def test_a_request_above_half_of_the_burst_needs_half_of_it_and_owes_the_rest(self) -> None:
        of = meter(BudgetUnit.TOKENS, limit=1000.0, amount=499.0)
        assert of.lacks(5000.0, 0.0)
        of.apply(lease(of.key.unit, 1.0), 0.0)
        assert not of.lacks(5000.0, 0.0)
        assert not meter(limit=10.0, amount=10.0).lacks(1.0, 0.0)
        assert meter(limit=10.0, amount=0.9).lacks(1.0, 0.0), "requests are whole"
        assert not meter(limit=0.5, amount=0.5).lacks(1.0, 0.0), "one request in two minutes"

    def test_what_the_agent_may_not_keep_is_dropped_with_the_report(self) -> None:
        of = meter(amount=10.0)
        of.apply(BudgetLease(of.key, 2, 0.0, 4.0, 0.1), 0.0)
        assert of.unspent == 10.0
        assert of.use(1, 0.0).unspent == 4.0

    def test_places_of_concurrent_requests_come_back(self) -> None:
        of = meter(BudgetUnit.CONCURRENT_REQUESTS, amount=2.0)
        assert [admitted(of, 1.0, 0.0) for _ in range(3)] == [True, True, False]
        of.settle(1.0, 1.0, 5.0)
        assert [admitted(of, 1.0, 5.0) for _ in range(2)] == [True, False]
        assert of.use(1, 5.0).used == 2.0

    def test_what_is_held_is_not_negative_beside_a_request_without_an_amount(self) -> None:
        of = meter(BudgetUnit.GPU_SECONDS)
        for amount in (0.1, 0.4, 0.0):
            of.take(amount, 0.0)
        for amount in (0.4, 0.1):
            of.settle(amount, 0.0, 1.0)
        assert of.use(1, 1.0).used >= 0.0, "the leader refuses a whole report with a negative amount"

    def test_the_first_request_is_the_usual_amount_and_later_ones_are_an_eighth_of_it(self) -> None:
        of = meter(BudgetUnit.TOKENS, limit=1000.0, amount=500.0)
        for amount in (0.01, 16.01):
            of.take(amount, 0.0)
        assert of.use(1, 1.0).request_amount == pytest.approx(0.01 + 16.0 / 8.0)

    def test_a_refused_request_that_the_next_lease_can_admit_is_the_usual_amount(self) -> None:
        of = meter(BudgetUnit.TOKENS, limit=1000.0, amount=10.0)
        of.take(1.0, 0.0)
        for amount, usual in ((17.0, 17.0), (12.0, 12.0), (5000.0, 500.0)):
            assert not admitted(of, amount, 0.0)
            assert of.use(1, 1.0).request_amount == usual
        of.apply(BudgetLease(of.key, 2, 0.0, 10.0, 1.0, rest=9.0), 1.0)
        assert not admitted(of, 100.0, 1.0)
        assert of.use(1, 1.0).request_amount == 500.0 - 400.0 / 8.0
        of.take(5000.0, 1.0)
        assert of.use(1, 1.0).request_amount == 500.0, "half of the burst admits every request"

    def test_the_rest_for_clients_grows_up_to_the_burst(self) -> None:
        of = meter(limit=60.0, amount=10.0)
        of.take(10.0, 0.0)
        assert [of.rest(now) for now in (0.0, 5.0, 10.0, 1000.0)] == [50.0, 55.0, 60.0, 60.0]
        of = meter(BudgetUnit.GPU_SECONDS, amount=60.0)
        of.take(59.5, 0.0)
        assert of.remaining(0.0) == 0.5

    def test_a_counter_that_is_opened_again_keeps_its_debt(self) -> None:
        of = meter(amount=5.0)
        of.close()
        assert (of.is_closed, of.unspent) == (True, 0.0)
        of.take(2.0, 1.0)
        of.reopen(lease(of.key.unit, 3.0, keep=4.0), 7.0)
        assert (of.is_closed, of.unspent, of.keep, of.used_at) == (False, 1.0, 4.0, 7.0)

    def test_demand_contains_what_was_refused_and_fades(self) -> None:
        of = meter(amount=1.0)
        for _ in range(50):
            admitted(of, 1.0, 0.0)
        first = of.use(1, 1.0).demand_per_s
        assert 15.0 < first < 50.0
        assert of.use(1, 21.0).demand_per_s < 0.01


class TestWithoutLeader:
    def test_the_last_rate_continues_then_an_equal_part(self) -> None:
        of = meter(limit=600.0, amount=100.0, rate_per_s=5.0)
        of.lose(0.0, 4, 0.0)
        assert of.lacks(1.0, 0.0), "the rest of the lease belongs to others"
        assert admitted(of, 1.0, 0.2)
        assert admitted(of, 4.0, 1.0)
        assert not of.lacks(10.0, 299.0)
        of.unspent = 0.0
        of.lacks(1.0, 300.0)
        of.unspent = 0.0
        assert of.lacks(2.6, 301.0)
        assert not of.lacks(2.5, 301.0), "10 a second by 4 agents"

    @pytest.mark.parametrize(("rule", "refused"), [(OnLoss.KEEP, False), (OnLoss.REFUSE, True)])
    def test_the_rule_of_the_tier_applies(self, rule: OnLoss, refused: bool) -> None:
        of = meter(rate_per_s=5.0)
        of.on_loss = rule
        of.lose(0.0, 4, 0.0)
        of.lacks(1.0, 301.0)
        assert of.lacks(1.0, 400.0) is refused

    def test_a_changed_limit_has_an_effect_at_once(self) -> None:
        of = meter(BudgetUnit.TOKENS, limit=60_000.0, amount=15_000.0, rate_per_s=250.0)
        of.lose(0.0, 4, 0.0)
        of.use_budget(Budget(BudgetUnit.TOKENS, 600.0), 10.0)
        of.lacks(1.0, 20.0)
        assert of.unspent <= 600.0
        of.unspent = 0.0
        assert of.lacks(20.0, 21.0), "at most 10 tokens a second"

    def test_a_leader_that_returns_ends_the_rate(self) -> None:
        of = meter(rate_per_s=5.0)
        of.lose(0.0, 1, 0.0)
        of.regain()
        of.apply(lease(of.key.unit, 1.0), 1.0)
        assert [admitted(of, 1.0, 100.0) for _ in range(2)] == [True, False]

    @given(
        st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 40)), max_size=80),
        st.floats(6.0, 6000.0),
        st.floats(1.0, 50.0),
        st.integers(1, 5),
    )
    def test_no_span_admits_more_than_the_rate_the_burst_and_one_request(
        self, steps: list[tuple[float, int]], limit: float, burst: float, agents: int
    ) -> None:
        of = meter(BudgetUnit.TOKENS, limit=limit, amount=burst / agents, burst=burst)
        of.hold_s = 0.0
        of.begin_lost(0.0, agents, 0.0)
        now, taken = 0.0, []
        for pause, amount in steps:
            now += pause
            if admitted(of, float(amount), now):
                taken.append((now, float(amount)))
            else:
                wait_s = of.retry_after_s(float(amount), now, NOON)
                assert not of.lacks(float(amount), now + wait_s + 1e-6), "a promise"
                now += wait_s + 1e-6
        for first in range(len(taken)):
            for last in range(first, len(taken)):
                span_s = taken[last][0] - taken[first][0]
                total = sum(amount for _, amount in taken[first : last + 1])
                per_s = limit / 60.0 / agents
                assert total <= span_s * per_s + max(1.0, burst / agents) + taken[last][1] + 1e-3

    def test_the_rate_adds_from_the_end_of_the_leases_whenever_a_request_finds_it(self) -> None:
        of = meter(amount=40.0, rate_per_s=0.5)
        of.lose(100.0, 4, 108.0)
        assert [admitted(of, 1.0, 108.0) for _ in range(5)] == [True] * 4 + [False]
        assert (of.left(108.0), of.rest(108.0)) == (0.0, 56.0)
        assert of.retry_after_s(1.0, 108.0, NOON) == 2.0

    def test_a_counter_that_never_had_a_lease_continues_with_an_equal_part(self) -> None:
        unit = BudgetUnit.REQUESTS
        of = BudgetMeter(key_of(unit), Budget(unit, 600.0), lease(unit, 0.0, rate_per_s=10.0), 0.0, NOON)
        of.begin_lost(0.0, 4, 0.0)
        assert not of.lacks(2.5, 1.0)
        assert of.lacks(2.6, 1.0)


class TestMoney:
    def of(self, amount: float = 10.0) -> BudgetMeter:
        return meter(BudgetUnit.MONEY_PER_DAY, limit=100.0, amount=amount, rate_per_s=0.0)

    def test_a_new_day_starts_at_zero_and_waits_for_leases(self) -> None:
        of = self.of()
        assert admitted(of, 8.0, 0.0)
        assert not admitted(of, 3.0, 0.0)
        assert of.retry_after_s(3.0, 0.0, NOON) == LEASE_WAIT_S, "the fleet has some left"
        of.settle(8.0, 7.0, 1.0)
        of.enter(of.period + 1)
        assert (of.used, of.unspent) == (0.0, 0.0)
        of.apply(lease(of.key.unit, 2.0, period=of.period), 2.0)
        assert admitted(of, 2.0, 2.0)

    def test_a_request_that_runs_at_midnight_is_charged_to_the_new_day(self) -> None:
        of = self.of()
        of.take(8.0, 0.0)
        of.enter(of.period + 1)
        assert of.used_ratio(2.0) == pytest.approx(0.08)
        of.apply(lease(of.key.unit, 5.0, period=of.period), 2.0)
        assert (of.used, of.unspent) == (8.0, -3.0)
        of.settle(8.0, 4.0, 3.0)
        assert (of.used, of.unspent) == (4.0, 1.0)

    def test_a_clock_that_jumps_over_midnight_and_back_gives_nothing_twice(self) -> None:
        of = self.of()
        today = of.period
        of.take(8.0, 0.0)
        of.settle(8.0, 8.0, 0.0)
        of.enter(today + 1)
        of.take(3.0, 0.0)
        of.settle(3.0, 3.0, 0.0)
        of.enter(today)
        assert of.used == 8.0
        of.enter(today + 1)
        assert of.used == 3.0

    def test_money_that_the_whole_fleet_has_spent_comes_back_with_the_next_day(self) -> None:
        of = self.of(100.0)
        of.take(100.0, 0.0)
        assert of.lacks(1.0, 0.0)
        assert of.retry_after_s(1.0, 0.0, NOON) == EXCHANGE_S, "the running request may need less"
        of.settle(100.0, 100.0, 0.0)
        assert of.retry_after_s(1.0, 0.0, NOON) == DAY_S / 2
        assert period_of(of.key.unit, NOON) == of.period


class TestRemaining:
    def test_it_falls_with_each_request_and_rises_only_with_time(self) -> None:
        of = meter(BudgetUnit.TOKENS, limit=6000.0, amount=6000.0)
        shown = []
        for _ in range(5):
            of.take(500.0, 0.0)
            shown.append(of.remaining(0.0))
            of.settle(500.0, 100.0, 0.0)
        assert shown == [5500.0, 5400.0, 5300.0, 5200.0, 5100.0]
        assert shown == sorted(shown, reverse=True)
        assert of.remaining(1.0) == 5200.0, "100 a second"
        assert of.reset_s(1.0) == 8.0
        assert of.remaining(9.0) == 6000.0

    @given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(1.0, 500.0), st.floats(0.0, 500.0)), max_size=40))
    def test_reset_is_true_and_no_rise_is_unexplained(self, steps: list[tuple[float, float, float]]) -> None:
        of = meter(BudgetUnit.TOKENS, limit=600.0, amount=1e9)
        now, before = 0.0, of.remaining(0.0)
        for pause_s, reserved, actual in steps:
            now += pause_s
            of.take(reserved, now)
            of.settle(reserved, actual, now)
            left = of.remaining(now)
            assert 0.0 <= left <= before + pause_s * 10.0 + 1e-6
            before = left
        reset_s = of.reset_s(now)
        assert of.remaining(now + reset_s) == pytest.approx(600.0)


@given(
    st.sampled_from(list(BudgetUnit)),
    st.lists(st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.integers(0, 5)), min_size=1, max_size=30),
)
def test_reservations_return_to_zero_in_any_order(unit: BudgetUnit, requests: list[tuple[float, float, int]]) -> None:
    of = meter(unit, limit=1e6, amount=1e6)
    waiting: list[tuple[float, float]] = []
    for amount, actual, turn in requests:
        of.take(amount, 0.0)
        waiting.append((amount, actual))
        if turn < len(waiting):
            of.settle(*waiting.pop(turn), 0.0)
    while waiting:
        of.settle(*waiting.pop(), 0.0)
    assert of.held == 0.0
    spent = 0.0 if unit is BudgetUnit.CONCURRENT_REQUESTS else sum(actual for _, actual, _ in requests)
    assert of.used == pytest.approx(spent)
    assert of.unspent == pytest.approx(1e6 - spent)


def sender(*budgets: Budget, amount: float = 1e9) -> SenderBudgets:
    found = SenderBudgets(Tenant("acme", "open"), (), keyed_budgets("acme", "", budgets, "de-1"))
    found.meters = [
        BudgetMeter(key, limit, BudgetLease(key, 0, min(amount, limit.limit), amount, 0.0), 0.0, NOON)
        for key, limit in found.limits
    ]
    return found


def needing(tokens: float) -> Amounts:
    amounts = Amounts()
    amounts.input_tokens, amounts.output_tokens = tokens, tokens / 2
    return amounts


def costing(money: float, most: float) -> Amounts:
    amounts = Amounts()
    amounts.money, amounts.most_money = money, most
    return amounts


def answering(output: float = 211.0) -> Amounts:
    """A request without a limit of its own; its answer takes 10 ms of GPU time for each token."""
    amounts = Amounts()
    amounts.input_tokens, amounts.output_tokens, amounts.most_output_tokens = 40.0, output, inf
    amounts.gpu_s = output / 100.0
    return amounts


class TestSender:
    BUDGETS = (
        Budget(BudgetUnit.TOKENS, 3000.0),
        Budget(BudgetUnit.REQUESTS, 10.0),
        Budget(BudgetUnit.CONCURRENT_REQUESTS, 5.0, BudgetScope.REGION),
    )

    def state(self, of: SenderBudgets) -> list[tuple[float, float]]:
        return [(meter.unspent, meter.held) for meter in of.meters]

    def test_a_request_reserves_all_or_nothing(self) -> None:
        of = sender(*self.BUDGETS)
        before = self.state(of)
        first = of.reserve(needing(1100.0), 0.0)
        assert isinstance(first, BudgetReservation)
        between = self.state(of)
        refused = of.reserve(needing(1500.0), 0.0)
        assert isinstance(refused, BudgetMeter)
        assert refused.key.unit is BudgetUnit.TOKENS
        assert self.state(of) == between
        first.give_back(1.0)
        first.give_back(1.0)
        assert self.state(of) == before

    def test_the_head_reserves_the_request_and_the_rest_follows(self) -> None:
        of = sender(*self.BUDGETS)
        before = self.state(of)
        head = of.reserve_early(0.0)
        assert isinstance(head, BudgetReservation)
        assert [meter.held for meter in of.meters] == [1.0, 1.0, 0.0]
        assert isinstance(of.reserve(needing(9000.0), 0.0, head), BudgetReservation)
        assert [meter.held for meter in of.meters] == [1.0, 1.0, 13500.0]
        head.give_back(0.0)
        assert self.state(of) == before

    def test_a_burst_admits_the_budget(self) -> None:
        of = sender(Budget(BudgetUnit.REQUESTS, 10.0))
        admitted = [of.reserve(Amounts(), 0.0) for _ in range(1000)]
        assert sum(isinstance(each, BudgetReservation) for each in admitted) == 10

    def test_cached_tokens_have_their_weight(self) -> None:
        of = sender(Budget(BudgetUnit.INPUT_TOKENS, 3000.0, cached_weight=0.25))
        used = needing(1000.0)
        used.cached_tokens = 800.0
        assert of.meters[0].amount_of(used) == 400.0

    @pytest.mark.parametrize("unit", [BudgetUnit.TOKENS, BudgetUnit.OUTPUT_TOKENS, BudgetUnit.GPU_SECONDS])
    @pytest.mark.parametrize("length", [1100.0, 1600.0])
    def test_a_first_burst_of_long_answers_passes_a_budget_by_one_answer(self, unit: BudgetUnit, length: float) -> None:
        of = sender(Budget(unit, 10_000.0))
        tried = [of.reserve(answering(), 0.0) for _ in range(1000)]
        admitted = [each for each in tried if isinstance(each, BudgetReservation)]
        used = answering(length)
        for each in admitted:
            each.settle(used, 1.0)
        (meter,) = of.meters
        assert len(admitted) > 4
        assert meter.used <= 10_000.0 + meter.amount_of(used)
        assert (meter.held, meter.used) == (0.0, len(admitted) * meter.amount_of(used))

    def test_answers_of_known_length_reserve_no_more(self) -> None:
        of = sender(Budget(BudgetUnit.TOKENS, 10_000.0))
        for _ in range(40):
            of.note_answer(211.0)
        admitted = [of.reserve(answering(), 60.0) for _ in range(1000)]
        assert sum(isinstance(each, BudgetReservation) for each in admitted) == pytest.approx(10_000 / 251, abs=5)

    def test_no_more_is_reserved_than_the_request_permits_and_no_short_answer_is_relied_on(self) -> None:
        of = sender(Budget(BudgetUnit.OUTPUT_TOKENS, 10_000.0))
        for _ in range(100):
            of.note_answer(3.0)
        for needed, most, reserved in ((5.0, inf, 211.0), (5.0, 50.0, 50.0), (300.0, inf, 300.0), (5.0, 0.0, 5.0)):
            amounts = answering(needed)
            amounts.most_output_tokens = most
            one = of.reserve(amounts, 0.0)
            assert isinstance(one, BudgetReservation)
            assert of.meters[0].held == pytest.approx(reserved, rel=1e-3)
            one.give_back(0.0)

    def test_a_stream_that_outgrows_its_reservation_leaves_nothing_for_later_requests(self) -> None:
        of = sender(Budget(BudgetUnit.TOKENS, 2_000.0), Budget(BudgetUnit.GPU_SECONDS, 50.0), amount=1e9)
        of.usual_tokens = 211.0
        stream = of.reserve(answering(), 0.0)
        assert isinstance(stream, BudgetReservation)
        left = [meter.unspent for meter in of.meters]
        stream.outgrown(0.0, 200.0)
        assert [meter.unspent for meter in of.meters] == left
        stream.outgrown(0.0, 1_900.0)
        tokens, gpu = of.meters
        assert tokens.held == pytest.approx(1_940.0)
        assert gpu.held == pytest.approx(2.11 * 1_900 / 211)
        assert of.reserve(answering(), 0.0) is tokens
        assert tokens.remaining(0.0) == pytest.approx(60.0)
        stream.outgrown(50.0, 1_000.0)
        assert tokens.held == pytest.approx(1_950.0), "the prompt of a session"
        stream.settle(answering(1_950.0), 1.0)
        stream.outgrown(0.0, 9_000.0)
        assert (tokens.held, tokens.used) == (0.0, 1_990.0)

    def test_an_answer_that_is_longer_than_expected_reserves_twice_its_length(self) -> None:
        of = sender(Budget(BudgetUnit.OUTPUT_TOKENS, 1e9))
        of.usual_tokens = 211.0
        (meter,), limited = of.meters, answering()
        limited.most_output_tokens = 600.0
        free, until_600 = of.reserve(answering(), 0.0), of.reserve(limited, 0.0)
        assert isinstance(free, BudgetReservation)
        assert isinstance(until_600, BudgetReservation)
        for tokens, held in ((200.0, 422.0), (250.0, 1_000.0), (400.0, 1_000.0), (550.0, 1_700.0), (900.0, 2_000.0)):
            free.answer_grew(tokens, has_arrived=True)
            until_600.answer_grew(tokens, has_arrived=True)
            assert meter.held == held, f"{tokens} tokens so far"
        assert of.usual_tokens > 211.0, "the next one may be as long"
        until_600.give_back(1.0)
        free.give_back(1.0)
        free.answer_grew(9_000.0, has_arrived=True)
        assert meter.held == 0.0

    def test_tokens_beyond_the_reservation_cost_money_while_they_come(self) -> None:
        of, amounts = sender(Budget(BudgetUnit.MONEY_PER_DAY, 100.0)), costing(1.0, 4.0)
        amounts.price = Rate(ModelPrice("chat", 1e6, 0.0, 2e6))
        session = of.reserve(amounts, 0.0)
        assert isinstance(session, BudgetReservation)
        (meter,) = of.meters
        for tokens, held in (((1.0, 1.0), 4.0), ((10.0, 20.0), 50.0), ((50.0, 60.0), 170.0)):
            session.outgrown(*tokens)
            assert meter.held == held
        assert of.reserve(costing(1.0, 4.0), 0.0) is meter
        session.settle(costing(170.0, 0.0), 1.0)
        assert (meter.held, meter.spent) == (0.0, 170.0)

    @pytest.mark.parametrize("limit", [10_000.0, 60_000.0])
    def test_ordinary_traffic_is_not_refused(self, limit: float) -> None:
        """Half of the budget, requests at random times, lengths that vary as those of chats do, 40 tokens a second."""
        rng, of = Random(1), sender(Budget(BudgetUnit.TOKENS, limit))
        of.meters[0].lose(0.0, 1, 0.0)
        of.meters[0].unspent = limit
        running: list[tuple[float, int, BudgetReservation, float]] = []
        now, sent = 0.0, 0
        while now < 600.0:
            now, sent = now + rng.expovariate(limit / 60.0 / 2.0 / 251.0), sent + 1
            while running and running[0][0] <= now:
                ended_at, _, ended, length = heappop(running)
                ended.settle(answering(length), ended_at)
            one = of.reserve(answering(), now)
            assert isinstance(one, BudgetReservation), f"request {sent}, at {now:.1f} s"
            length = rng.lognormvariate(5.03, 0.8)
            heappush(running, (now + length / 40.0, sent, one, length))
        assert sent > 100

    def test_money_is_a_unit_of_its_own(self) -> None:
        assert not sender(*self.BUDGETS).needs_money
        assert sender(Budget(BudgetUnit.MONEY_PER_MONTH, 1.0)).needs_money
        assert BudgetUnit.MONEY_PER_MONTH in MONEY

    def test_of_money_a_request_reserves_what_it_may_cost_at_most_as_far_as_that_is_left(self) -> None:
        of = sender(Budget(BudgetUnit.MONEY_PER_DAY, 100.0), Budget(BudgetUnit.OUTPUT_TOKENS, 9e9))
        held = [of.reserve(costing(1.0, 40.0), 0.0) for _ in range(10)]
        admitted = [each for each in held if isinstance(each, BudgetReservation)]
        assert [each.amounts.money for each in admitted] == [40.0, 40.0, 20.0]
        for each in admitted:
            each.settle(costing(1.0, 0.0), 1.0)
        (money,) = (meter for meter in of.meters if meter.is_money)
        assert (money.unspent, money.held, money.spent) == (97.0, 0.0, 3.0)

    @given(st.lists(st.tuples(st.floats(0.01, 20.0), st.floats(1.0, 10.0), st.floats(0.0, 1.0)), max_size=200))
    def test_requests_that_run_together_exceed_a_budget_of_money_by_one_request_at_most(
        self, requests: list[tuple[float, float, float]]
    ) -> None:
        of, largest, running = sender(Budget(BudgetUnit.MONEY_PER_DAY, 100.0)), 0.0, []
        for estimate, factor, part in requests:
            most = estimate * factor
            reserved = of.reserve(costing(estimate, most), 0.0)
            if isinstance(reserved, BudgetReservation):
                largest = max(largest, most)
                running.append((reserved, estimate + part * (most - estimate)))
        for reserved, actual in running:
            reserved.settle(costing(actual, 0.0), 1.0)
        assert of.meters[0].spent <= 100.0 + largest + 1e-6
