"""The meters of an agent: found by sender, forgotten when idle, and kept on disk where they count money."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.budgets import Budget, BudgetUnit, OnLoss
from penstock.policy.kinds.models import Cost, Model
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.policy.policy import Policy
from penstock.pools.placement import WorkEstimate
from penstock.routing.reasons import Refusal
from penstock.tenancy.budget_lease import BudgetKey, BudgetLease, BudgetUse
from penstock.tenancy.budget_reservations import BudgetReservation, SenderBudgets
from penstock.tenancy.without_leader import full_rate
from regional_agent.background_tasks import cancel
from regional_agent.config.last_known_good import MAX_FILE_BYTES, StateFile
from regional_agent.tenants import tenant_budgets
from regional_agent.tenants.budget_metrics import BudgetMetrics
from regional_agent.tenants.spent_money import MAX_COUNTERS, SpentCounters, SpentMoney
from regional_agent.tenants.tenant_budgets import IDLE_S, LEASE_AWAITED, TenantBudgets
from tests.support.wait import PATIENCE_S

DAY_S = 86_400.0
NOON = 1_000 * DAY_S + DAY_S / 2
MONEY = Budget(BudgetUnit.MONEY_PER_DAY, 100.0)
TEN = Budget(BudgetUnit.REQUESTS, 10.0)
PRICES = Prices("list", 0.0, "EUR", (ModelPrice("*", per_request=2.0),))
POLICY = Policy({}, {"m": Model("m")}, {}, (), prices=(PRICES,))
ESTIMATE = WorkEstimate("acme", "m", Cost(), CostInputs(10), Work(0.0, 1.0), False)


class Leases:
    """The leases of a leader, as a test sets them."""

    def __init__(self, opening: float = 10.0) -> None:
        self.amount, self.ended, self.woken, self.agents = opening, None, 0, 4
        self.ended: float | None = None

    def opening(self, key: BudgetKey, budget: Budget, now: float) -> BudgetLease:
        amount = min(self.amount, budget.limit)
        return BudgetLease(key, 0, amount, amount, full_rate(budget))

    def ended_s(self, now: float) -> float | None:
        return None if self.ended is None else now - self.ended

    def wake(self) -> None:
        self.woken += 1


class Here:
    """The budgets of one agent."""

    def __init__(self, leases: Leases | None = None, epoch: int = 1) -> None:
        self.leases = leases or Leases()
        self.wall = NOON
        self.budgets = TenantBudgets("de-1", epoch, self.leases, lambda region: 2 if region else 4, lambda: self.wall)

    def of(self, *budgets: Budget, key: tuple[str, tuple[Budget, ...]] = ("", ()), **fields: Any) -> SenderBudgets:
        found = self.budgets.of(Tenant("acme", "open", own_budgets=budgets, **fields), *key)
        assert found is not None
        return found

    def ask(self, sender: SenderBudgets, now: float = 0.0) -> BudgetReservation | Refusal:
        return self.budgets.reserve(sender, POLICY, ESTIMATE, now)

    def admitted(self, sender: SenderBudgets, requests: int, now: float = 0.0) -> int:
        return sum(isinstance(self.ask(sender, now), BudgetReservation) for _ in range(requests))

    def used(self) -> dict[BudgetUnit, float]:
        return {meter.key.unit: meter.used for meter in self.budgets.meters()}


def test_a_tenant_without_budgets_has_none() -> None:
    assert Here().budgets.of(Tenant("free", "open")) is None


def test_all_senders_of_a_tenant_share_its_budget_and_a_key_adds_its_own() -> None:
    here = Here()
    anyone = here.of(TEN)
    narrow = here.of(TEN, key=("psk-1", (Budget(BudgetUnit.REQUESTS, 3.0),)))
    assert here.admitted(narrow, 5) == 3
    assert here.budgets.refusals.newest(NOON)[0].key_id == "psk-1"
    assert here.admitted(anyone, 20) == 7


async def test_a_first_request_waits_for_an_answer_of_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_budgets, "LEASE_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(tenant_budgets, "MAX_WAITING", 2)
    here = Here(Leases(opening=0.0))
    sender = here.of(TEN)

    def asked() -> BudgetReservation | Refusal:
        return here.budgets.reserve(sender, POLICY, ESTIMATE, 0.0, may_wait=True)

    woken = here.leases.woken
    assert asked() is LEASE_AWAITED
    assert here.leases.woken > woken
    assert here.budgets.refusals.newest(NOON) == (), "it is not refused yet"
    waiting = [asyncio.create_task(here.budgets.wait_for_lease()) for _ in range(2)]
    await asyncio.sleep(0)
    refused = asked()
    assert isinstance(refused, Refusal)
    assert refused.exceeded is not None, "no more than two wait"
    here.budgets.apply([BudgetLease(BudgetKey("acme", "", BudgetUnit.REQUESTS, ""), 1, 2.0, 2.0, 0.1)], 0.0)
    here.budgets.answered([])
    await asyncio.gather(*waiting)
    assert [isinstance(asked(), BudgetReservation) for _ in range(2)] == [True, True]
    assert here.budgets._waiting == 0


def test_a_changed_limit_keeps_what_was_used() -> None:
    here = Here()
    assert here.admitted(here.of(TEN), 4) == 4
    other = here.of(replace(TEN, limit=99.0))
    assert here.admitted(other, 20) == 6
    assert here.used() == {BudgetUnit.REQUESTS: 10.0}
    assert other.meters[0].budget.limit == 99.0


def test_an_agent_asks_for_a_lease_once_when_an_amount_is_nearly_used() -> None:
    here = Here()
    sender = here.of(TEN)
    here.admitted(sender, 7)
    assert here.leases.woken == 0
    here.admitted(sender, 5)
    assert here.leases.woken == 1
    here.budgets.uses(1.0)
    here.ask(sender, 1.0)
    assert here.leases.woken == 2


class TestForgetting:
    def test_an_idle_counter_is_closed_and_forgotten_once_the_leader_has_it(self) -> None:
        here = Here()
        reserved = here.ask(here.of(TEN))
        assert isinstance(reserved, BudgetReservation)
        (use,) = here.budgets.uses(IDLE_S * 2)
        assert not use.closed, "a request runs"
        reserved.give_back(IDLE_S * 2)
        assert not here.budgets.uses(IDLE_S * 3)[0].closed
        (use,) = here.budgets.uses(IDLE_S * 3 + 1.0)
        assert (use.closed, use.used, use.unspent) == (True, 0.0, 0.0)
        here.budgets.answered([use])
        assert here.used() == {}

    def test_a_tenant_that_returns_continues_or_starts_anew(self) -> None:
        here = Here()
        sender = here.of(TEN)
        for answered in (False, True):
            reserved = here.ask(sender, 0.0)
            assert isinstance(reserved, BudgetReservation)
            reserved.settle(reserved.amounts, 0.0)
            uses = here.budgets.uses(IDLE_S + 1.0)
            assert uses[0].closed
            if answered:
                here.budgets.answered(uses)
            before = 0.0 if answered else 1.0
            assert here.admitted(sender, 20, IDLE_S + 2.0) == 10, "by another opening"
            assert here.used() == {BudgetUnit.REQUESTS: before + 10.0}
            here.budgets._meters.clear()
            here.budgets._generation += 1

    def test_counters_are_reported_in_turn_the_used_ones_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tenant_budgets, "MAX_USES", 2)
        here = Here()
        senders = [here.budgets.of(Tenant(name, "open", own_budgets=(TEN,))) for name in "abcd"]
        for sender in senders:
            assert sender is not None
            here.ask(sender, 0.0)
        here.budgets.uses(1.0)
        reported = [use.key.tenant for now in (2.0, 3.0) for use in here.budgets.uses(now)]
        assert sorted(reported) == list("abcd")
        assert senders[1] is not None
        here.ask(senders[1], 3.5)
        assert here.budgets.uses(4.0)[0].key.tenant == "b"


class TestWithoutLeader:
    def test_rates_replace_leases_and_end_with_them(self) -> None:
        here = Here()
        tier = Tier("t", "open", hold_s=0.0, on_loss=OnLoss.SHARE)
        sender = here.of(replace(TEN, limit=240.0), rules=tier)
        assert here.admitted(sender, 3, 0.0) == 3
        here.leases.ended = 5.0
        assert here.admitted(sender, 9, 6.0) == 1, "what is left of leases is void; one a second by four agents"
        assert here.admitted(sender, 9, 9.0) == 3
        here.leases.ended = None
        assert here.admitted(sender, 9, 20.0) == 0
        here.budgets.apply([BudgetLease(sender.meters[0].key, 2, 2.0, 9.0, 1.0)], 20.0)
        assert here.admitted(sender, 9, 20.0) == 2

    def test_a_tenant_that_appears_gets_an_equal_part(self) -> None:
        here = Here(Leases(0.0))
        here.leases.ended = -1000.0
        sender = here.of(replace(TEN, limit=240.0))
        assert here.admitted(sender, 9, 0.0) == 0
        assert here.admitted(sender, 9, 2.0) == 2


class TestMoney:
    def test_the_day_begins_with_an_opening_and_what_runs_is_charged_to_it(self) -> None:
        here = Here()
        sender = here.of(MONEY)
        assert here.admitted(sender, 9) == 5
        here.wall += DAY_S
        assert here.admitted(sender, 9, 1.0) == 0, "five run, each of which costs two"
        assert here.used() == {BudgetUnit.MONEY_PER_DAY: 10.0}

    async def test_what_was_spent_is_reported_after_a_kill(self, tmp_path: Path) -> None:
        before = Here()
        assert before.admitted(before.of(MONEY), 3) == 3
        await SpentMoney(tmp_path, before.budgets).save()
        after = Here(epoch=2)
        SpentMoney(tmp_path, after.budgets).load()
        (ended,) = after.budgets.uses(1.0)
        assert (ended.epoch, ended.used, ended.closed) == (1, 6.0, True)
        assert after.admitted(after.of(MONEY), 1) == 1
        await SpentMoney(tmp_path, after.budgets).save()
        third = Here(epoch=3)
        SpentMoney(tmp_path, third.budgets).load()
        assert {(use.epoch, use.used) for use in third.budgets.uses(1.0)} == {(1, 6.0), (2, 2.0)}
        third.budgets.answered(third.budgets.uses(1.0))
        assert third.budgets.uses(2.0) == []

    async def test_the_last_save_includes_what_was_spent_during_a_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered, release, real = threading.Event(), threading.Event(), StateFile.write

        def slow(file: StateFile[SpentCounters], value: SpentCounters) -> None:
            entered.set()
            release.wait(PATIENCE_S)
            real(file, value)

        monkeypatch.setattr(StateFile, "write", slow)
        here = Here()
        money, sender = SpentMoney(tmp_path, here.budgets), here.of(MONEY)
        here.admitted(sender, 1)
        periodic = asyncio.create_task(money.save())
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        here.admitted(sender, 2)
        asyncio.get_running_loop().call_later(0.05, release.set)
        # The agent ends the periodic saves after the last one.
        await money.save()
        await cancel([periodic])
        await asyncio.to_thread(release.wait, PATIENCE_S)
        after = Here(epoch=2)
        SpentMoney(tmp_path, after.budgets).load()
        assert [use.used for use in after.budgets.uses(1.0)] == [6.0]

    async def test_a_failed_write_is_repeated(self, tmp_path: Path) -> None:
        here = Here()
        here.admitted(here.of(MONEY), 1)
        money = SpentMoney(tmp_path / "later", here.budgets)
        with capture_logs() as logs:
            await money.save()
        assert [entry["error"] for entry in logs] == ["No such file or directory"]
        (tmp_path / "later").mkdir()
        await money.save()
        assert (tmp_path / "later" / "spent-money").exists()

    async def test_a_full_file_of_the_longest_names_is_read(self, tmp_path: Path) -> None:
        here, later = Here(), Here(epoch=2)
        keys = (
            BudgetKey(f"{number:0>256}", "k" * 64, BudgetUnit.MONEY_PER_MONTH, "r" * 63)
            for number in range(MAX_COUNTERS + 1)
        )
        here.budgets.report_ended(BudgetUse(key, 2**62, 1e17 / 3, 0.0, 0.0, period=2**31) for key in keys)
        await SpentMoney(tmp_path, here.budgets).save()
        SpentMoney(tmp_path, later.budgets).load()
        assert len(later.budgets.money_uses()) == MAX_COUNTERS
        room_for_a_name = 80 * MAX_COUNTERS
        assert (tmp_path / "spent-money").stat().st_size + room_for_a_name <= MAX_FILE_BYTES

    async def test_a_damaged_file_is_no_reason_not_to_start(self, tmp_path: Path) -> None:
        (tmp_path / "spent-money").write_bytes(b"x")
        here = Here()
        SpentMoney(tmp_path, here.budgets).load()
        assert here.budgets.uses(1.0) == []


def test_metrics_name_the_fullest_budgets_and_count_refusals() -> None:
    here = Here()
    sender = here.of(TEN)
    here.admitted(sender, 12)
    for number in range(40):
        busy = here.budgets.of(Tenant(f"t{number}", "open", own_budgets=(TEN,)))
        assert busy is not None
        here.admitted(busy, 6)
    registry = CollectorRegistry()
    metrics = BudgetMetrics(registry)
    for _ in range(2):
        metrics.update(here.budgets, 0.0)
    samples = [sample for family in registry.collect() for sample in family.samples]
    refused = [sample.value for sample in samples if sample.name.endswith("refusals_total") and sample.value]
    used = {sample.labels["tenant"]: sample.value for sample in samples if sample.name.endswith("used_ratio")}
    near = [sample.value for sample in samples if sample.name.endswith("near_limit")]
    assert (refused, len(used), used["acme"], near) == ([2.0], 20, 1.0, [1.0])


def test_refusals_are_kept_by_budget_within_bounds() -> None:
    here = Here()
    here.admitted(here.of(TEN), 13)
    (refusals,) = here.budgets.refusals.newest(NOON, "acme")
    assert (refusals.unit, refusals.count, refusals.needed) == (BudgetUnit.REQUESTS, 3, 1.0)
    assert here.budgets.refusals.newest(NOON + 4000.0) == ()
    assert here.budgets.refusals.newest(NOON, "other") == ()
