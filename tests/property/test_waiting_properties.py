"""An agent's queues under any events: each queued request is answered once or cancelled, never both."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock.admission.region_work import RemoteQueue
from penstock.cost.work import Work
from penstock.health.endpoint_health import ProbeOutcome
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Model
from penstock.routing.reasons import Reason, Refusal
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.routing import queue_dispatcher, queue_entry
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.routing.queue_entry import QueueEntry
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.examples import examples

MODELS = ("m", "n")
SLOTS = 3
RESIDENCIES = ("here", "anywhere")

HERE, ELSEWHERE = SimpleNamespace(from_peer=False), SimpleNamespace(from_peer=True)
"""Targets in this region and in another one."""

T = TypeVar("T")


class Waiter:
    def __init__(self, context: Any) -> None:
        self.context = context
        self.answers: list[Any] = []
        self.entry: QueueEntry | None = None
        self.left = False

    @property
    def waits(self) -> bool:
        return self.entry is not None and not self.answers and not self.left


class Room(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.directory = tempfile.TemporaryDirectory()
        file = Path(self.directory.name) / "endpoints.yaml"
        file.write_text(
            "".join(
                f"- {{name: gpu-{model}, url: 'http://127.0.0.1:{n + 1}', models: [{model}], slots: {SLOTS}}}\n"
                for n, model in enumerate(MODELS)
            )
        )
        self.now = 100.0
        self.endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1))
        self.by_model: dict[str, Endpoint] = {endpoint.models[0]: endpoint for endpoint in self.endpoints.every()}
        for endpoint in self.by_model.values():
            endpoint.probed(ProbeOutcome.GOOD)
        for pool in self.endpoints.pools.values():
            pool.prior_s = 0.2
            pool.recount()
        self.view = SharedLoad(self.endpoints)
        self.room = QueueDispatcher(self.endpoints, self.view, lambda: self.now)
        self.waiters: list[Waiter] = []
        self.running: dict[str, int] = dict.fromkeys(MODELS, 0)
        self.credits = 0
        self.heads = 0

    def _ask(self, context: Any, now: float) -> Any:
        """Place a request as the request path does: here, elsewhere with a credit, or nowhere if none is ready."""
        endpoint = self.by_model[context.model]
        if endpoint.view.takes_more:
            endpoint.take()
            self.running[context.model] += 1
            return HERE
        if context.residency.permitted.name == "anywhere" and self.credits:
            self.credits -= 1
            return ELSEWHERE
        return None if endpoint.view.ready else Refusal(Reason.NONE_READY, "nobody is left")

    def inside(self, call: Callable[[], T]) -> T:
        """Call a function as a callback of the event loop."""

        async def on_the_loop() -> T:
            return call()

        return self.loop.run_until_complete(on_the_loop())

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(
        model=st.sampled_from(MODELS),
        priority=st.integers(0, 2),
        residency=st.sampled_from(RESIDENCIES),
        within_s=st.sampled_from([0.5, 5.0, 600.0]),
        attempts=st.integers(0, 2),
        rests_s=st.sampled_from([0.0, 0.0, 0.5]),
        work_s=st.sampled_from([0.1, 30.0]),
        elsewhere=st.booleans(),
    )
    def join(
        self,
        model: str,
        priority: int,
        residency: str,
        within_s: float,
        attempts: int,
        rests_s: float,
        work_s: float,
        elsewhere: bool,
    ) -> None:
        context: Any = SimpleNamespace(
            occupies_slot=True,
            model=model,
            priority=priority,
            is_batch=False,
            weight=1.0,
            received_at=self.now,
            deadline_at=self.now + within_s,
            max_wait_s=DEFAULT_MAX_WAIT_S,
            attempts=attempts,
            rests_until=self.now + rests_s,
            queued_s=0.0,
            route_context=None,
            estimate=SimpleNamespace(tenant=residency, work=Work(prefill_s=0.1, decode_s=work_s)),
            policy=SimpleNamespace(models={name: Model(name) for name in MODELS}),
            job_deadline_at=None,
            residency=SimpleNamespace(permitted=SimpleNamespace(name=residency)),
        )
        waiter = Waiter(context)
        queued = queue_entry.Waiter(context, self._ask, waiter.answers.append)
        answered_within: list[Any] = []

        def joins() -> QueueEntry | Refusal:
            entry = self.room.join(queued, 100, self.now, elsewhere=elsewhere)
            answered_within.extend(waiter.answers)
            return entry

        answer = self.inside(joins)
        assert answered_within == []
        if isinstance(answer, Refusal):
            assert answer.reason is Reason.SATURATED
            assert answer.retry_after_s is not None
        else:
            waiter.entry = answer
            self.waiters.append(waiter)

    @precondition(lambda self: self.waiters)
    @rule(which=st.integers(0, 50))
    def leave(self, which: int) -> None:
        waiter = self.waiters[which % len(self.waiters)]
        assert waiter.entry is not None
        self.room.leave(waiter.entry)
        if not waiter.answers:
            waiter.left = True

    @rule(model=st.sampled_from(MODELS))
    def fill(self, model: str) -> None:
        while self.by_model[model].view.takes_more:
            self.by_model[model].take()
            self.running[model] += 1

    @rule(model=st.sampled_from(MODELS))
    def one_ends(self, model: str) -> None:
        if self.running[model]:
            self.running[model] -= 1
            self.by_model[model].give_back()
            self.inside(self.room.room_appeared)

    @rule(model=st.sampled_from(MODELS), outcome=st.sampled_from([ProbeOutcome.GOOD, ProbeOutcome.UNREADY]))
    def endpoint_flaps(self, model: str, outcome: ProbeOutcome) -> None:
        for _ in range(2):
            self.by_model[model].probed(outcome)

    @rule(credits=st.integers(1, 3))
    def credit_arrives(self, credits: int) -> None:
        self.credits += credits
        self.inside(self.room.credit_arrived)

    @rule(model=st.sampled_from(MODELS), waited_ms=st.integers(0, 5000), there=st.booleans())
    def another_agent_publishes(self, model: str, waited_ms: int, there: bool) -> None:
        self.heads += 1
        remote = RemoteQueue(1, 0, self.now - waited_ms / 1000, self.heads)
        self.view.work.remote_queues = {model: [remote]} if there else {}
        self.inside(self.room.room_appeared)

    @rule(seconds=st.sampled_from([0.01, 0.3, 3.0, DEFAULT_MAX_WAIT_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_loop_turns(self) -> None:
        self.turn()

    @invariant()
    def each_is_answered_at_most_once_and_none_that_left(self) -> None:
        for waiter in self.waiters:
            assert len(waiter.answers) <= 1
            assert not (waiter.left and waiter.answers)

    @invariant()
    def what_waits_is_what_is_counted(self) -> None:
        for model in MODELS:
            admission_queue = sum(waiter.waits for waiter in self.waiters if waiter.context.model == model)
            assert self.room.queues.waiting_here(model) == admission_queue

    @invariant()
    def nothing_runs_that_is_not_held(self) -> None:
        for model in MODELS:
            assert 0 <= self.by_model[model].local_load.requests == self.running[model] <= SLOTS

    def teardown(self) -> None:
        self.view.work.remote_queues = {}
        for endpoint in self.by_model.values():
            for _ in range(2):
                endpoint.probed(ProbeOutcome.GOOD)
        for _ in range(40):
            if not any(waiter.waits for waiter in self.waiters):
                break
            self.now += 0.6
            for model in MODELS:
                while self.running[model]:
                    self.one_ends(model)
            self.turn(0.02)
        assert not any(waiter.waits for waiter in self.waiters), "everybody is answered as soon as there is room"
        for waiter in self.waiters:
            assert waiter.left or len(waiter.answers) == 1
        self.room.close()
        self.turn()
        self.loop.close()
        self.directory.cleanup()


def test_each_queued_request_leaves_the_queue_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_dispatcher, "POLL_S", 0.002)
    monkeypatch.setattr(queue_dispatcher, "YIELD_S", 0.001)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Room, settings=settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
    )
