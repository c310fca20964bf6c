"""Budgets that are divided over a fleet: granted = used + returned + expired, never doubled, never burned for ever.

Messages are lost, repeated and late; agents are cut off, die and return; leaders change; clocks jump.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.opening_share import whole
from penstock.tenancy.without_leader import full_rate
from penstock.wire.budget_exchange import ExchangeAnswer, ExchangeRequest
from tests.support.budget_fleet import Agent, BudgetFleet
from tests.support.examples import examples

NAMES = ["eu/a", "eu/b", "us/c"]
PER_MINUTE = BudgetKey("team", "", BudgetUnit.REQUESTS, "")
CONCURRENT = BudgetKey("team", "", BudgetUnit.CONCURRENT_REQUESTS, "")
MONEY = BudgetKey("team", "", BudgetUnit.MONEY_PER_MONTH, "")
BUDGETS = {
    PER_MINUTE: Budget(BudgetUnit.REQUESTS, 60.0),
    CONCURRENT: Budget(BudgetUnit.CONCURRENT_REQUESTS, 12.0),
    MONEY: Budget(BudgetUnit.MONEY_PER_MONTH, 100.0),
}
names = st.sampled_from(NAMES)


class DividedBudgets(RuleBasedStateMachine):
    """A fleet with one budget of each kind."""

    @initialize()
    def start(self) -> None:
        self.fleet = BudgetFleet(BUDGETS, {"eu": ["a", "b"], "us": ["c"]})
        self.epoch = 1
        self.dead: dict[str, Agent] = {}
        self.cut: set[str] = set()
        self.late: list[tuple[str, ExchangeRequest, ExchangeAnswer | None]] = []
        self.began = self.fleet.now
        self.used = 0.0
        self.spent = 0.0
        self.unknown = dict.fromkeys((PER_MINUTE, CONCURRENT), 0.0)
        self.periods: dict[int, float] = {}
        self.pass_time(0.5)

    def pass_time(self, seconds: float) -> None:
        end = self.fleet.now + seconds
        while self.fleet.now < end - 1e-9:
            self.fleet.advance(min(0.5, seconds), self.cut)

    @rule(name=names, amount=st.integers(1, 40))
    def send_requests(self, name: str, amount: int) -> None:
        agent = self.fleet.agents.get(name)
        if agent is not None:
            self.used += sum(agent.take(PER_MINUTE, BUDGETS[PER_MINUTE], self.fleet.now) for _ in range(amount))

    @rule(name=names, amount=st.integers(1, 8))
    def begin_requests(self, name: str, amount: int) -> None:
        agent = self.fleet.agents.get(name)
        if agent is not None:
            for _ in range(amount):
                agent.take(CONCURRENT, BUDGETS[CONCURRENT], self.fleet.now)

    @rule(name=names)
    def end_requests(self, name: str) -> None:
        meter = self.fleet.agents[name].meters.get(CONCURRENT) if name in self.fleet.agents else None
        while meter is not None and meter.used >= 1:
            meter.end()

    @rule(name=names, amount=st.integers(1, 20))
    def spend_money(self, name: str, amount: int) -> None:
        agent = self.fleet.agents.get(name)
        for _ in range(amount):
            if agent is not None and agent.take(MONEY, BUDGETS[MONEY], self.fleet.now, 0.5):
                period = agent.meters[MONEY].period
                self.periods[period] = self.periods.get(period, 0.0) + 0.5

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 13.0]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(name=names, loses_answer=st.booleans())
    def lose_a_message(self, name: str, loses_answer: bool) -> None:
        agent = self.fleet.agents.get(name)
        if agent is not None and name not in self.cut:
            request = agent.request(self.fleet.now)
            answer = self.fleet.ask(request) if loses_answer else None
            self.late.append((name, request, answer))

    @precondition(lambda self: self.late)
    @rule(index=st.integers(0, 100), data=st.booleans())
    def deliver_late(self, index: int, data: bool) -> None:
        name, request, answer = self.late[index % len(self.late)]
        agent = self.fleet.agents.get(name)
        if data or answer is None:
            self.fleet.ask(request)
        elif agent is not None and agent.epoch == request.epoch:
            agent.accept(answer, self.fleet.now)

    @rule(name=names)
    def repeat_a_request(self, name: str) -> None:
        agent = self.fleet.agents.get(name)
        if agent is not None and name not in self.cut:
            request = agent.request(self.fleet.now)
            answer = self.fleet.ask(request)
            assert self.fleet.ask(request) is None
            if answer is not None:
                agent.accept(answer, self.fleet.now)
                agent.accept(answer, self.fleet.now)

    @rule(name=names)
    def cut_off(self, name: str) -> None:
        if not self.cut:
            self.cut.add(name)

    @rule()
    def mend(self) -> None:
        self.cut.clear()

    @rule(name=names)
    def kill(self, name: str) -> None:
        if len(self.fleet.agents) > 1 and name in self.fleet.agents:
            dead = self.dead[name] = self.fleet.agents.pop(name)
            self.used -= self.unreported(name, dead)
            self.fleet.register()

    def unreported(self, name: str, dead: Agent) -> float:
        """Return what an agent used per minute that it can report no more: it counts as expired."""
        meter = dead.meters.get(PER_MINUTE)
        if meter is None:
            return 0.0
        budget = self.fleet.leader.budgets.get(PER_MINUTE) if self.fleet.leader is not None else None
        account = budget.accounts.get(name) if budget is not None else None
        return meter.used - account.used if account is not None and account.epoch == dead.epoch else meter.used

    @precondition(lambda self: self.dead)
    @rule()
    def restart(self) -> None:
        name, before = self.dead.popitem()
        region, short = name.split("/")
        self.fleet.agents[name] = Agent(short, region, before.epoch + 1, self.fleet.now)
        self.fleet.register()

    @rule()
    def elect(self) -> None:
        if self.fleet.leader is not None:
            self.fleet.saved = self.fleet.leader.totals()
        # No new leader can know the rate of an agent that it has never heard of; it assumes an equal part.
        for key in self.unknown:
            meters = [self.fleet.agents[name].meters.get(key) for name in self.cut & self.fleet.agents.keys()]
            running = key == CONCURRENT
            self.unknown[key] += sum(max(each.rate, each.used * running) for each in meters if each is not None)
        self.epoch += 1
        self.fleet.elect(self.epoch)

    @rule(hours=st.sampled_from([-1, 1]))
    def set_the_clock(self, hours: int) -> None:
        self.fleet.wall_offset += hours * 3600.0

    @invariant()
    def nothing_is_doubled(self) -> None:
        if not hasattr(self, "fleet"):
            return
        budget = BUDGETS[PER_MINUTE]
        rate = full_rate(budget) + self.unknown[PER_MINUTE]
        allowed = whole(budget) + (self.fleet.now - self.began) * rate
        assert self.used <= allowed * 1.05 + 1, f"used {self.used} of {allowed}"
        meters = [agent.meters[CONCURRENT] for agent in self.fleet.agents.values() if CONCURRENT in agent.meters]
        running = sum(meter.used for meter in meters)
        assert running <= BUDGETS[CONCURRENT].limit + self.unknown[CONCURRENT], f"{running} run"
        for period, spent in self.periods.items():
            assert spent <= BUDGETS[MONEY].limit * 1.05, f"{spent} spent in {period}"

    @invariant()
    def the_leader_accounts_for_everything(self) -> None:
        if not hasattr(self, "fleet") or self.fleet.leader is None:
            return
        for budget in self.fleet.leader.budgets.values():
            assert abs(budget.held - sum(account.held for account in budget.accounts.values())) < 1e-6
            if budget.key == PER_MINUTE:
                assert budget.available + budget.held <= whole(budget.budget) + 1e-6

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        # Nothing is burned: after a pause, one agent has the whole budget. A new leader may have charged a whole burst
        # that earlier leaders granted, which one minute gives back; another minute refills the burst.
        self.cut.clear()
        for name in NAMES:
            self.end_requests(name)
        self.fleet.register()
        self.pass_time(125.0)
        name, agent = next(iter(self.fleet.agents.items()))
        used = begun = 0
        for _ in range(16):
            used += sum(agent.take(PER_MINUTE, BUDGETS[PER_MINUTE], self.fleet.now) for _ in range(30))
            begun += sum(agent.take(CONCURRENT, BUDGETS[CONCURRENT], self.fleet.now) for _ in range(5))
            self.pass_time(0.2)
        assert used >= 0.93 * 60, f"{used} of 60 for {name}"
        assert begun >= 12 - 1, f"{begun} of 12 for {name}"


TestDividedBudgets = DividedBudgets.TestCase
TestDividedBudgets.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
