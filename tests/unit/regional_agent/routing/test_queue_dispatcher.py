"""Queued requests are served in order, in turn with the other agents, and refused once their deadline is too near."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import UNSET

from penstock.admission import model_queue
from penstock.admission.model_queue import NextReason
from penstock.admission.region_work import RemoteQueue
from penstock.cost.work import Work
from penstock.fleet.report import TenantReport, busiest_tenants
from penstock.health.endpoint_health import ProbeOutcome
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Model, Queueing
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.pools.pool_accounting import DEFAULT_SERVICE_S
from penstock.routing.reasons import Reason, Refusal
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.routing import queue_dispatcher
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.routing.queue_entry import QueueEntry, Waiter
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.clocks import SetClock
from tests.support.wait import PATIENCE_S, until

TARGET: Any = SimpleNamespace(from_peer=False)


class Here:
    def __init__(self, directory: Path) -> None:
        file = directory / "endpoints.yaml"
        file.write_text("- {name: gpu, url: 'http://127.0.0.1:1', models: [m], slots: 2}\n")
        self.clock = SetClock()
        self.endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1))
        (self.gpu,) = self.endpoints.every()
        self.gpu.probed(ProbeOutcome.GOOD)
        self.view = SharedLoad(self.endpoints)
        self.room = QueueDispatcher(self.endpoints, self.view, self.clock)
        self.served: list[str] = []
        self.asked: list[str] = []
        self.credits: dict[str, int] = {}
        """By residency, what other regions have granted."""
        self.cannot_use_it = ""
        """Who has tried what there is here already."""
        self.models: dict[str, Model] = {}
        self.refused: dict[str, Refusal] = {}
        for _ in range(2):
            self.gpu.take()

    def join(
        self,
        name: str,
        priority: int = 0,
        received_ago_s: float = 0.0,
        residency: str = "anywhere",
        attempts: int = 0,
    ) -> QueueEntry | Refusal:
        received_at = self.clock.now - received_ago_s
        context: Any = SimpleNamespace(
            occupies_slot=True,
            name=name,
            model="m",
            priority=priority,
            job_deadline_at=None,
            is_batch=priority == BATCH_PRIORITY,
            weight=1.0,
            received_at=received_at,
            deadline_at=self.clock.now + 600,
            attempts=attempts,
            rests_until=0.0,
            object_location=None,
            queued_s=0.0,
            max_wait_s=DEFAULT_MAX_WAIT_S,
            route_context=None,
            context_class=0,
        )
        context.residency = SimpleNamespace(permitted=SimpleNamespace(name=residency))
        context.estimate = SimpleNamespace(tenant="t", work=Work(0.1, 1.0))
        context.policy = SimpleNamespace(models=self.models)

        def answer(target: Any) -> None:
            if isinstance(target, Refusal):
                self.refused[name] = target
            else:
                self.served.append(name)

        return self.room.join(Waiter(context, self._ask, answer), 100, self.clock.now)

    def place(self, name: str, **fields: Any) -> QueueEntry:
        entry = self.join(name, **fields)
        assert not isinstance(entry, Refusal)
        return entry

    def free(self) -> None:
        self.gpu.give_back()
        self.room.room_appeared()

    def _ask(self, context: Any, now: float) -> Any:
        self.asked.append(context.name)
        if self.credits.get(context.residency.permitted.name, 0):
            self.credits[context.residency.permitted.name] -= 1
            return TARGET
        if not self.gpu.view.takes_more or context.name == self.cannot_use_it:
            return None
        self.gpu.take()
        return TARGET


@pytest.fixture
async def here(tmp_path: Path) -> Any:
    region = Here(tmp_path)
    yield region
    region.room.close()


async def test_room_goes_to_who_is_first_and_to_no_more_than_fit(here: Here) -> None:
    for name in ("a", "b"):
        here.place(name)
    here.place("urgent", priority=1)
    here.free()
    await asyncio.sleep(0)
    assert here.served == ["urgent"]
    here.free()
    await asyncio.sleep(0)
    assert here.served == ["urgent", "a"]
    assert here.room.queues.waiting("m") == 1


async def test_one_that_is_tried_again_keeps_its_place(here: Here) -> None:
    here.place("new")
    here.place("again", received_ago_s=3.0)
    here.free()
    await asyncio.sleep(0)
    assert here.served == ["again"]


async def test_who_leaves_is_gone_at_once(here: Here) -> None:
    first = here.place("first")
    here.place("second")
    here.view.work.of("m").start(0, "u", 1.0, 1.0, here.clock.now)
    assert busiest_tenants(here.room.queues.tenants()) == (TenantReport("t", 0, 2), TenantReport("u", 1, 0))
    here.room.leave(first)
    here.room.leave(first)
    assert here.room.queues.waiting("m") == 1
    here.free()
    await asyncio.sleep(0)
    assert here.served == ["second"]


async def test_newcomers_do_not_overtake_but_higher_priority_does(here: Here) -> None:
    assert not here.room.queues.is_awaited("m")
    here.place("a")
    assert here.room.queues.is_awaited("m")
    assert not here.room.queues.is_awaited("other")
    newcomer = SimpleNamespace(model="m", priority=0, received_at=here.clock.now, occupies_slot=True)
    assert here.room.must_queue(cast(Any, newcomer))
    newcomer.priority = 1
    assert not here.room.must_queue(cast(Any, newcomer))


async def test_what_would_wait_too_long_is_refused_with_when_to_come_again(here: Here) -> None:
    here.gpu.completed(DEFAULT_SERVICE_S)
    here.endpoints.pools["m"].update_readiness()
    names = [f"n{n}" for n in range(50)]
    refusals = [refusal for name in names if isinstance(refusal := here.join(name), Refusal)]
    expected = int(DEFAULT_MAX_WAIT_S / (here.endpoints.pools["m"].service_s / 2))
    assert here.room.queues.waiting("m") == pytest.approx(expected, abs=1)
    assert {refusal.reason for refusal in refusals} == {Reason.SATURATED}
    assert all(refusal.retry_after_s is not None and refusal.retry_after_s >= 1 for refusal in refusals)


async def test_nothing_is_refused_for_an_expected_wait_before_a_request_has_completed(here: Here) -> None:
    assert not any(isinstance(here.join(f"n{n}"), Refusal) for n in range(50))
    here.endpoints.pools["m"].prior_s = 2 * DEFAULT_SERVICE_S
    here.endpoints.pools["m"].update_readiness()
    assert isinstance(here.join("last"), Refusal), "the policy states how long a request takes"


async def test_a_request_that_waited_too_long_is_refused(here: Here) -> None:
    here.place("a")
    here.clock.now += DEFAULT_MAX_WAIT_S + 1
    await until(lambda: bool(here.refused))
    assert here.refused["a"].reason is Reason.SATURATED
    assert here.room.queues.waiting("m") == 0


async def test_a_request_that_cannot_use_a_free_slot_delays_no_other(here: Here) -> None:
    here.cannot_use_it = "first"
    for name in ("first", "second", "third"):
        here.place(name, attempts=int(name == "first"))
    here.free()
    await asyncio.sleep(0)
    assert here.served == ["second"]
    assert here.room.queues.waiting("m") == 2


async def test_a_request_bound_to_this_region_does_not_stop_others_from_leaving(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_queue, "MAX_WITHOUT_TARGET", 2)
    for number in range(3):
        here.place(f"bound {number}", residency="here")
    for name in ("free", "free too", "one too many"):
        here.place(name)
    here.credits = {"anywhere": 2}
    here.room.credit_arrived()
    await asyncio.sleep(0)
    assert here.served == ["free", "free too"]
    assert here.asked == ["bound 0", "free", "free too", "one too many"], (
        "one request of a residency class stands for all of the class"
    )


async def test_many_are_sent_off_in_several_turns_of_the_loop(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_dispatcher, "MAX_AT_ONCE", 2)
    monkeypatch.setattr(queue_dispatcher, "POLL_S", PATIENCE_S)
    for number in range(5):
        here.place(str(number))
    here.credits = {"anywhere": 5}
    here.room.credit_arrived()
    served = []
    for _ in range(3):
        await asyncio.sleep(0)
        served.append(len(here.served))
    assert served == [2, 4, 5]


async def test_a_free_slot_without_an_event_is_found_soon(here: Here) -> None:
    here.place("a")
    here.gpu.give_back()
    await until(lambda: bool(here.served))


async def test_another_agents_longer_wait_comes_first_but_not_for_ever(here: Here) -> None:
    assert not here.room.queues.is_awaited("m")
    here.view.work.remote_queues = {"m": [RemoteQueue(4, 0, here.clock.now - 5.0, 77)]}
    assert here.room.queues.is_awaited("m")
    newcomer = SimpleNamespace(model="m", priority=0, received_at=here.clock.now, occupies_slot=True)
    assert here.room.must_queue(cast(Any, newcomer)), "nobody overtakes another agent's queue either"
    here.place("ours")
    assert here.room.queues.waiting("m") == 5
    assert here.room.queues.wait_s("m", here.endpoints.pools["m"]) > here.endpoints.pools["m"].service_s
    here.free()
    await asyncio.sleep(0)
    assert here.served == []
    await until(lambda: bool(here.served))


async def test_the_length_and_age_of_the_queue_are_published(here: Here) -> None:
    first = here.place("a")
    here.clock.now += 2.0
    here.place("b", priority=-3)
    said = here.room.summaries()["m"]
    assert (said.requests, said.behind, said.waited_ms) == (2, 0, 2000)
    here.room.leave(first)
    assert here.room.summaries()["m"].which != said.which


@pytest.mark.parametrize("follows_service", [True, False])
async def test_the_default_wait_grows_with_the_measured_service_times(here: Here, follows_service: bool) -> None:
    here.models["m"] = Model("m", queueing=Queueing(wait_is_set=UNSET if follows_service else True))
    for _ in range(50):
        here.gpu.completed(60.0)
    here.endpoints.pools["m"].recount()
    entry = here.join("second")
    if not follows_service:
        assert isinstance(entry, Refusal)
        assert "too long" in entry.detail
        return
    assert not isinstance(entry, Refusal)
    assert entry.leave_at == pytest.approx(here.clock.now + 60.0, rel=0.05), "two service times, of two slots"


async def test_the_explanation_has_the_tenants_in_order_and_why(here: Here) -> None:
    assert here.room.explain("m") is None
    here.place("a")
    here.clock.now += 2.0
    here.place("urgent", priority=1)
    full = here.room.explain("m")
    assert full is not None
    assert [(each.tenant, each.priority, each.requests) for each in full.tenants] == [("t", 1, 1), ("t", 0, 1)]
    assert (full.requests, full.tenants[1].longest_wait_s, full.why) == (2, 2.0, NextReason.NO_ROOM)
    assert [(each.weight, each.share, each.ahead_s) for each in full.tenants] == [(1.0, 1.0, 0.0)] * 2
    here.gpu.give_back()
    free = here.room.explain("m")
    assert free is not None
    assert free.why == NextReason.PRIORITY
    assert here.room.queues.waiting_here("m") == 2


async def test_a_batch_request_leaves_slots_to_models_that_share_them(tmp_path: Path) -> None:
    here = Here(tmp_path)
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        "- {name: gpu, url: 'http://127.0.0.1:1', models: [m, n], slots: 2}\n"
        "- {name: own, url: 'http://127.0.0.1:2', models: [m], slots: 3}\n"
    )
    await here.endpoints.sources.reload_file()
    for endpoint in here.endpoints.every():
        endpoint.probed(ProbeOutcome.GOOD)
    here.gpu.give_back()
    assert (here.room.idle_slots("m", 1.0), here.room.idle_slots("n", 1.0)) == (4, 1)
    here.room.promised = lambda model: int(model == "n")
    assert (here.room.idle_slots("m", 1.0), here.room.idle_slots("n", 1.0)) == (3, 0)
    here.room.promised = lambda model: 0
    here.view.work.remote_queues = {"n": [RemoteQueue(5, 1000, here.clock.now, 77)]}
    assert here.room.idle_slots("m", 1.0) == 3, "no request for n can use the endpoint of m alone"
    assert here.room.idle_slots("m", 0.5) == 2
    here.view.work.remote_queues = {"m": [RemoteQueue(1, 1000, here.clock.now, 77)]}
    assert here.room.idle_slots("n", 1.0) == 1, "the endpoint of m alone has room for it"


async def test_a_batch_request_starts_only_in_idle_slots_and_behind_all_others(here: Here) -> None:
    assert here.room.idle_slots("m", 0.75) == 0
    here.gpu.give_back()
    assert here.room.idle_slots("m", 0.75) == 1, "one of two slots is in use"
    here.room.promised = lambda model: 1
    assert here.room.idle_slots("m", 0.75) == 0, "the other slot is promised to another region"
    here.room.promised = lambda model: 0
    here.cannot_use_it = "bound"
    bound = here.place("bound", priority=-1000)
    assert not here.room.idle_slots("m", 0.75)
    here.room.leave(bound)
    assert here.room.idle_slots("m", 0.75)
    here.view.work.remote_queues = {"m": [RemoteQueue(1, 1000, here.clock.now, 77)]}
    assert not here.room.idle_slots("m", 0.75), "a request waits at another agent"
    here.view.work.remote_queues = {"m": [RemoteQueue(0, -BATCH_PRIORITY, here.clock.now, 77)]}
    assert here.room.idle_slots("m", 0.75)
