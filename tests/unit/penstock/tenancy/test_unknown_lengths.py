"""Budgets of tokens hold although no agent knows how long answers will be: ten agents with real counters, a leader."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log
from random import Random
from typing import Final

import pytest

from penstock.answers.token_counts import Usage
from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.tenants import Tenant
from penstock.tenancy.agent_leases import AgentLeases
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.budget_lease import BudgetKey, BudgetLease, BudgetUse
from penstock.tenancy.budget_meter import BudgetMeter
from penstock.tenancy.budget_reservations import BudgetReservation, SenderBudgets
from tests.support.budget_fleet import BudgetFleet

REGIONS: Final = {"eu": ["a", "b", "c", "d"], "us": ["e", "f", "g"], "ap": ["h", "i", "j"]}
AGENTS: Final = [f"{region}/{name}" for region, names in REGIONS.items() for name in names]
KEY: Final = BudgetKey("team", "", BudgetUnit.TOKENS, "")
PROMPT: Final = 100.0
SPEED: Final = 50.0
"""Tokens per second of an answer."""
STEP_S: Final = 0.1
CHECK_S: Final = 2.5
"""Time (s) after which an agent looks at a running answer again."""


class OneSender:
    """The budget of one sender at one agent; implements `MeteredBudgets`."""

    def __init__(self, leases: AgentLeases, budget: Budget) -> None:
        self.leases, self.budget = leases, budget
        self.sender = SenderBudgets(Tenant("team", "open"), (), {KEY: budget})
        self.estimator = CostEstimator()

    def ask(self, now: float) -> BudgetReservation | BudgetMeter:
        """Reserve a request without a limit of its own."""
        if not self.sender.meters:
            opening = self.leases.opening(KEY, self.budget, now)
            self.sender.meters = [BudgetMeter(KEY, self.budget, opening, now, 1.8e9)]
        needs = Amounts()
        needs.input_tokens, needs.most_output_tokens = PROMPT, inf
        needs.output_tokens = self.estimator.answer_tokens("team", "chat", None)
        (meter,), reserved = self.sender.meters, self.sender.reserve(needs, now)
        if isinstance(reserved, BudgetMeter) or meter.unspent < meter.low:
            self.leases.wake()
        return reserved

    def learn(self, length: float, now: float) -> None:
        """Learn from the usage of an answer, as the agent does."""
        if self.estimator.is_due("team", "chat", now):
            usage = Usage(prompt_tokens=int(PROMPT), answer_tokens=int(length))
            self.estimator.observe("team", "chat", CostInputs(500), usage, now)

    def uses(self, now: float) -> list[BudgetUse]:
        return [meter.use(1, now) for meter in self.sender.meters]

    def apply(self, leases: Iterable[BudgetLease], now: float) -> None:
        for lease in leases:
            self.sender.meters[0].apply(lease, now)

    def answered(self, uses: list[BudgetUse]) -> None:
        """Do nothing: these counters stay."""


class Running:
    """A request that runs."""

    def __init__(self, at: OneSender, reserved: BudgetReservation, began: float, length: float) -> None:
        self.at, self.reserved, self.began, self.length = at, reserved, began, length
        self.done, self.checked_at = 0.0, began

    def proceed(self, now: float) -> float:
        """Generate until `now`; returns the new tokens. A whole answer has no bytes to count, and the same speed."""
        before, self.done = self.done, min(self.length, (now - self.began) * SPEED)
        if self.done >= self.length:
            used = Amounts()
            used.input_tokens, used.output_tokens = PROMPT, self.length
            self.reserved.settle(used, now)
            self.at.learn(self.length, now)
        elif now - self.checked_at >= CHECK_S:
            self.checked_at = now
            self.reserved.answer_grew(self.done, has_arrived=False)
        return self.done - before


def demand(per_minute: float, lengths: tuple[float, float], load: float, burst: int = 0) -> tuple[float, float, float]:
    """Return by how much the tokens of two minutes exceed a budget at most, the part of it that they use, and the part
    of the requests that is refused.

    Args:
        lengths: mean tokens of the answers of each minute.
        load: what clients ask for, in budgets, while half of the agents have hardly any demand, others each 7 s.
        burst: requests that come at once at first.
    """
    budget = Budget(BudgetUnit.TOKENS, per_minute)
    fleet = BudgetFleet({KEY: budget}, REGIONS)
    senders = {}
    for name, agent in fleet.agents.items():
        agent._all = senders[name] = OneSender(agent.leases, budget)  # type: ignore[assignment]
    for _ in range(5):
        fleet.advance()
    rng, weights, start = Random(7), [1.0] * len(AGENTS), fleet.now
    running: list[Running] = []
    used = worst = 0.0
    refused, asked = 0, burst
    waiting, due, allowed = [(name, start) for name in rng.choices(AGENTS, k=burst)], 0.0, 1.0
    for step in range(int(120.0 / STEP_S)):
        now = fleet.now
        if step % 70 == 0:
            weights = [rng.choice((0.0, 0.05, 0.2, 5.0)) for _ in AGENTS]
            weights[rng.randrange(len(AGENTS))] = 5.0
        used += sum(each.proceed(now) for each in running)
        running = [each for each in running if each.done < each.length]
        due += load * budget.per_s / (lengths[0] + PROMPT) * STEP_S
        asking = [*waiting, *((name, now) for name in rng.choices(AGENTS, weights, k=int(due)))]
        asked += len(asking) - len(waiting)
        due, waiting = due % 1.0, []
        for name, came_at in asking:
            reserved = senders[name].ask(now)
            if isinstance(reserved, BudgetReservation):
                mean = lengths[step >= 60.0 / STEP_S]
                length = max(1.0, rng.lognormvariate(log(mean) - 0.32, 0.8))
                running.append(Running(senders[name], reserved, now, length))
                used += PROMPT
            elif now - came_at < 1.0 and reserved.awaits_lease(PROMPT + 211.0, now):
                waiting.append((name, came_at))
            else:
                refused += 1
        allowed = budget.limit + (now - start) * budget.per_s
        worst = max(worst, used / allowed - 1.0)
        fleet.advance(STEP_S)
    return worst, used / allowed, refused / asked


@pytest.mark.parametrize(
    ("per_minute", "lengths", "load", "burst", "least"),
    [
        pytest.param(10_000.0, (250.0, 250.0), 5.0, 1000, 0.95, id="short answers, and a first burst"),
        pytest.param(100_000.0, (1500.0, 1500.0), 5.0, 0, 0.85, id="long answers"),
        pytest.param(100_000.0, (4000.0, 4000.0), 5.0, 0, 0.9, id="longer answers"),
        pytest.param(100_000.0, (250.0, 1000.0), 2.0, 0, 0.95, id="answers become four times as long"),
    ],
)
def test_moving_demand_for_answers_of_unknown_length_exceeds_no_budget(
    per_minute: float, lengths: tuple[float, float], load: float, burst: int, least: float
) -> None:
    worst, part, _ = demand(per_minute, lengths, load, burst)
    print(f"overshoot {worst:.3f}, use {part:.3f}")
    assert worst <= 0.05
    assert part >= least


@pytest.mark.parametrize(("per_minute", "length"), [(100_000.0, 1500.0), (1_000_000.0, 250.0)])
def test_half_of_a_budget_is_not_refused_wherever_it_is_asked_for(per_minute: float, length: float) -> None:
    _, part, refused = demand(per_minute, (length, length), 0.5)
    print(f"use {part:.3f}, refused {refused:.4f}")
    assert refused <= 0.001
    assert part > 0.2
