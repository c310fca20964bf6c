"""A region on the virtual clock: several agents before the same engines, each choosing with Penstock's own code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from lab.engine.batching import Sequence as EngineSequence
from lab.simulate.clock import VirtualClock
from lab.simulate.simulated_engine import SimulatedEngine
from lab.traces.trace import TraceRequest
from penstock.admission.fair_queueing import YIELD_S, Head, Turns
from penstock.admission.queueing import MAX_WAIT_S, Queue, Waiting
from penstock.fleet.expected_wait import mean_with, pool_service_s
from penstock.policy.policy import Cost
from penstock.routing.cost_estimate import OVERHEAD_BYTES, Expectations, worked
from penstock.routing.endpoint_selection import EndpointView, choose_endpoint
from penstock.routing.speed_learning import MICROSECONDS, SpeedLearner, microseconds, speeds
from penstock.routing.usage import Usage
from penstock.routing.work import CostInputs, Work

EXCHANGE_S = 0.02
"""Time (s) between two looks at what the other agents have in flight."""

STALE_S = 2.0
"""The same where the view is stale."""

RECOUNT_S = 0.2
"""Time (s) between two looks at what completions have taught."""

PRIOR_SERVICE_S = 5.0
"""What a request is expected to take (s) before any has ended."""

UNBOUNDED = 1_000_000
"""A limit that nobody reaches: without a queue of the agent's own, everything is handed to engines at once."""


class Strategy(StrEnum):
    """How agents choose."""

    ROUND_ROBIN = "round robin"
    MIN_REQUEST_LOCAL = "least request, own view"
    MIN_REQUEST_STALE = "least request, stale shared view"
    TWO_CHOICES_STALE = "two choices, stale shared view"
    MIN_REQUEST_SHARED = "least request, shared view"
    MIN_WORK = "least work, shared view"
    MIN_WORK_LATE = "least work, shared view, late binding"


class Ways(msgspec.Struct, frozen=True):
    """What a strategy comes down to."""

    exchange_s: float | None = None
    """Time (s) between two looks at what the other agents have; None never looks."""
    minds_age: bool = False
    """Whether the chooser is told how old its view is: past a bound it samples two endpoints and scans no more."""
    learns: bool = False
    """Whether work is reckoned with, and not only requests."""
    late: bool = False
    """Whether requests wait in the agent until there is room."""


WAYS = {
    Strategy.ROUND_ROBIN: Ways(),
    Strategy.MIN_REQUEST_LOCAL: Ways(),
    Strategy.MIN_REQUEST_STALE: Ways(STALE_S),
    Strategy.TWO_CHOICES_STALE: Ways(STALE_S, minds_age=True),
    Strategy.MIN_REQUEST_SHARED: Ways(EXCHANGE_S),
    Strategy.MIN_WORK: Ways(EXCHANGE_S, minds_age=True, learns=True),
    Strategy.MIN_WORK_LATE: Ways(EXCHANGE_S, minds_age=True, learns=True, late=True),
}


class EngineKind(msgspec.Struct, frozen=True):
    """Some engines that are alike."""

    accelerator: str
    count: int
    max_num_seqs: int


class Served(msgspec.Struct):
    """One request's fate; times are seconds since it arrived."""

    request: TraceRequest
    engine: int = -1
    first_s: float | None = None
    end_s: float | None = None


class Told(NamedTuple):
    """What one agent says of itself."""

    loads: list[tuple[int, ...]]
    """Requests, prefill and decode (microseconds) that it has reserved, by engine."""
    head: Head | None
    """Who waits there and is first."""


class Region:
    """Engines, agents, and everything that was asked of them."""

    def __init__(
        self,
        strategy: Strategy,
        model: str,
        cost: Cost,
        kinds: Sequence[EngineKind],
        agents: int,
        seed: int,
        *,
        limits_tell: bool = False,
    ) -> None:
        """Idle; the same `seed` gives the same run.

        Args:
            limits_tell: clients limit each answer to what it turns out to have; else they set no limit.
        """
        self.limits_tell = limits_tell
        self.clock = VirtualClock()
        self.served: list[Served] = []
        self.engines: list[SimulatedEngine] = []
        specs: list[EngineKind] = []
        for kind in kinds:
            for _ in range(kind.count):
                self.engines.append(SimulatedEngine(self.clock, model, kind.accelerator, kind.max_num_seqs))
                specs.append(kind)
        self.agents = [SimulatedAgent(self, n, strategy, cost, specs, Random(seed * 1000 + n)) for n in range(agents)]
        self._ways = WAYS[strategy]
        self._rng = Random(seed)
        self._unanswered = 0

    def run(self, requests: Sequence[TraceRequest]) -> None:
        """Ask all of it, each at one agent at random, until the last one is answered."""
        for request in requests:
            agent = self._rng.choice(self.agents)
            self.clock.at(request.at_s, partial(agent.arrive, request))
        if self._ways.exchange_s is not None:
            self.clock.at(self._ways.exchange_s, partial(self._exchange, self._ways.exchange_s))
        if self._ways.learns:
            self.clock.at(RECOUNT_S, self._recount)
        self._unanswered = len(requests)
        while self._unanswered:
            self.clock.step()

    def answered(self) -> None:
        """One request has all its tokens."""
        self._unanswered -= 1

    def _exchange(self, every_s: float) -> None:
        """Everybody tells first, and then acts on what was told."""
        told = [agent.tell() for agent in self.agents]
        for agent, own in zip(self.agents, told, strict=True):
            agent.hear([other for other in told if other is not own])
        self.clock.at(self.clock.now + every_s, partial(self._exchange, every_s))

    def _recount(self) -> None:
        for agent in self.agents:
            agent.recount()
        self.clock.at(self.clock.now + RECOUNT_S, self._recount)


class SimulatedAgent:
    """One agent: what it has reserved, what it has heard, what it has learned."""

    def __init__(
        self, region: Region, number: int, strategy: Strategy, cost: Cost, specs: Sequence[EngineKind], rng: Random
    ) -> None:
        """Knows nothing of the engines but what they are made of."""
        self.own = [[0, 0, 0] for _ in specs]
        """Requests, prefill and decode (microseconds) reserved on each engine."""
        self.queue: Queue[Served] = Queue()
        self._region = region
        self._round_robin = strategy is Strategy.ROUND_ROBIN
        self._ways = WAYS[strategy]
        self._cost = cost
        self._rng = rng
        self._others = [[0, 0, 0] for _ in specs]
        self._other_heads: list[Head] = []
        self._heard_at = 0.0
        self._turns = Turns()
        self._numbers_from = number << 32
        self._yields = False
        self._turn = rng.randrange(len(specs))
        self._learners = [SpeedLearner(spec.accelerator) for spec in specs]
        self._expectations = Expectations()
        self._service_s, self._completions = PRIOR_SERVICE_S, 0
        self._own_service_s: list[float | None] = [None] * len(specs)
        self._views = [
            EndpointView(
                f"engine-{n}",
                spec.max_num_seqs,
                spec.max_num_seqs + 1 if self._ways.late else UNBOUNDED,
                ready=True,
            )
            for n, spec in enumerate(specs)
        ]
        for view in self._views:
            view.update_score()
        if self._ways.learns:
            self.recount()

    def arrive(self, request: TraceRequest) -> None:
        """A client asks."""
        served = Served(request)
        self._region.served.append(served)
        if len(self.queue) or self._other_heads or not self._place(served):
            now = self._region.clock.now
            self.queue.join(served, "", 0, 0, now, now + MAX_WAIT_S * UNBOUNDED)
            self._pump()

    def tell(self) -> Told:
        """What the other agents are to hear."""
        head = self.queue.head()
        return Told([tuple(one) for one in self.own], self._head(head) if head is not None else None)

    def hear(self, others: Sequence[Told]) -> None:
        """Take in what the other agents have reserved, and who waits there."""
        self._heard_at = self._region.clock.now
        for index, view in enumerate(self._views):
            heard = [sum(other.loads[index][part] for other in others) for part in range(3)]
            if heard != self._others[index]:
                self._others[index] = heard
                self._show(index, view)
        self._other_heads = [other.head for other in others if other.head is not None]
        self._pump()

    def recount(self) -> None:
        """Reckon with what has been learned since."""
        known = [
            (v.slots, own_s) for v, own_s in zip(self._views, self._own_service_s, strict=True) if own_s is not None
        ]
        pool_s = pool_service_s(known, PRIOR_SERVICE_S)
        for view, own_s, speed in zip(self._views, self._own_service_s, speeds(self._learners), strict=True):
            view.speed = speed
            view.service_s = own_s if own_s is not None else pool_s
            view.update_score()

    def _place(self, served: Served) -> bool:
        index, work = self._choose(served)
        if index is None:
            return False
        view, request = self._views[index], served.request
        prefill_us, decode_us = microseconds(work, view.speed, view.in_flight + 1)
        speed = view.speed
        ahead_s = (view.prefill_us + prefill_us) / MICROSECONDS / speed.prefill if speed is not None else 0.0
        sent_at, streams = self._region.clock.now, view.in_flight + 1
        self._reserve(index, 1, prefill_us, decode_us)
        served.engine = index
        first_at = 0.0

        def on_first() -> None:
            nonlocal first_at
            first_at = self._region.clock.now
            served.first_s = first_at - request.at_s
            self._reserve(index, 0, -prefill_us, 0)
            if streams <= view.slots:
                self._learners[index].saw_first_byte(ahead_s, first_at - sent_at, first_at)

        def on_end() -> None:
            served.end_s = self._region.clock.now - request.at_s
            self._region.answered()
            self._finish(index, request, decode_us, sent_at, first_at, streams)

        sequence = EngineSequence(request.prompt_tokens, max(1, request.output_tokens), request.prefix_blocks)
        self._region.engines[index].submit(sequence, on_first, on_end)
        return True

    def _choose(self, served: Served) -> tuple[int | None, Work]:
        if self._round_robin:
            self._turn = (self._turn + 1) % len(self._views)
            return self._turn, Work(0.0, 0.0)
        work = self._expectations.guess(self._cost, "", "", self._ask(served.request))
        age_s = self._region.clock.now - self._heard_at if self._ways.minds_age else 0.0
        who = choose_endpoint(self._views, self._rng, work=work, view_age_s=age_s, service_s=self._service_s)
        return who.index, work

    def _finish(
        self, index: int, request: TraceRequest, decode_us: int, sent_at: float, first_at: float, streams: int
    ) -> None:
        view, now = self._views[index], self._region.clock.now
        usage = Usage(request.prompt_tokens, max(1, request.output_tokens))
        self._expectations.saw("", "", self._ask(request), usage, now)
        self._reserve(index, -1, 0, -decode_us)
        if streams <= view.slots:
            decode_s = worked(self._cost, usage).decode_s
            self._learners[index].saw_end(decode_s, now - first_at, (streams + view.in_flight + 1) / 2, now)
        prior_s = self._own_service_s[index]
        prior_s = prior_s if prior_s is not None else self._service_s
        self._own_service_s[index] = mean_with(prior_s, view.completions, now - sent_at)
        view.completions += 1
        self._service_s = mean_with(self._service_s, self._completions, now - sent_at)
        self._completions += 1
        self._pump()

    def _pump(self) -> None:
        """Give room to those who wait, or leave it to another agent whose turn it is."""
        now = self._region.clock.now
        while (first := self.queue.head()) is not None and self._has_room():
            turn = self._turns.whose(self._head(first), self._other_heads, now)
            if turn is not None:
                if not self._yields:
                    self._yields = True
                    self._region.clock.at(now + YIELD_S, partial(self._take_after_all, turn))
                return
            if not self._place(first.item):
                return
            self.queue.leave(first)

    def _take_after_all(self, left_to: Head) -> None:
        """Whoever's turn it was has had the time to take it."""
        self._yields = False
        if self._has_room():
            self._turns.pass_over(left_to, self._region.clock.now)
        self._pump()

    def _has_room(self) -> bool:
        return any(view.takes_more for view in self._views)

    def _head(self, waiting: Waiting[Served]) -> Head:
        return Head(0, waiting.since, self._numbers_from + waiting.number)

    def _reserve(self, index: int, requests: int, prefill_us: int, decode_us: int) -> None:
        own = self.own[index]
        own[0] += requests
        own[1] += prefill_us
        own[2] += decode_us
        self._show(index, self._views[index])

    def _show(self, index: int, view: EndpointView) -> None:
        own, others = self.own[index], self._others[index]
        view.in_flight, view.prefill_us, view.decode_us = own[0] + others[0], own[1] + others[1], own[2] + others[2]
        view.update_score()

    def _ask(self, request: TraceRequest) -> CostInputs:
        most = max(1, request.output_tokens) if self._region.limits_tell else None
        return CostInputs(body_bytes=request.prompt_tokens * 4 + OVERHEAD_BYTES, max_tokens=most)
