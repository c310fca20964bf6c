"""A region on the virtual clock: several agents in front of the same engines, each with Penstock's selection code."""

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
from lab.traces.trace import BLOCK_TOKENS, TraceRequest
from penstock.admission.fair_queueing import YIELD_S, FairQueue, QueueHead
from penstock.admission.queue_order import urgency_at
from penstock.admission.queueing import MAX_WAIT_S, QueuedRequest
from penstock.policy.policy import Cost, Queueing
from penstock.routing.affinity import BLOCK_BYTES, MAX_BLOCKS
from penstock.routing.cost_estimate import OVERHEAD_BYTES
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.placement import Placement, WorkEstimate
from penstock.routing.pool_accounting import EndpointAccount, Load, PoolAccount
from penstock.routing.reasons import Reason
from penstock.routing.work import NO_WORK, CostInputs

EXCHANGE_S = 0.02
"""Interval (s) between two exchanges of the agents' in-flight load."""

STALE_S = 2.0
"""The same interval for the stale-view strategy."""

RECOUNT_S = 0.2
"""Interval (s) between two updates of the learned service times."""

PRIOR_SERVICE_S = 5.0
"""Expected service time (s) of a request before the first completion."""

BYTES_PER_TOKEN = 4

BLOCKS_PER_SPAN = BLOCK_TOKENS * BYTES_PER_TOKEN // BLOCK_BYTES
"""Blocks of the affinity index in one prefix block of a trace."""

UNBOUNDED = 1_000_000
"""An unreachable limit: without an admission queue, every request is sent to an engine at once."""


class Strategy(StrEnum):
    """How agents select endpoints."""

    ROUND_ROBIN = "round robin"
    LEAST_REQUEST_LOCAL = "least request, own view"
    LEAST_REQUEST_STALE = "least request, stale shared view"
    TWO_CHOICES_STALE = "two choices, stale shared view"
    LEAST_REQUEST_SHARED = "least request, shared view"
    LEAST_WORK = "least work, shared view"
    LEAST_WORK_LATE = "least work, shared view, late binding"


class Ways(msgspec.Struct, frozen=True):
    """The properties of a strategy."""

    exchange_s: float | None = None
    """Interval (s) between two exchanges of load with the other agents; None disables them."""
    minds_age: bool = False
    """Whether selection considers the age of its view: past a bound, it samples two endpoints, not all."""
    learns: bool = False
    """Whether selection estimates work, instead of counting requests only."""
    late: bool = False
    """Whether requests wait in the agent until an engine has room."""


WAYS = {
    Strategy.ROUND_ROBIN: Ways(),
    Strategy.LEAST_REQUEST_LOCAL: Ways(),
    Strategy.LEAST_REQUEST_STALE: Ways(STALE_S),
    Strategy.TWO_CHOICES_STALE: Ways(STALE_S, minds_age=True),
    Strategy.LEAST_REQUEST_SHARED: Ways(EXCHANGE_S),
    Strategy.LEAST_WORK: Ways(EXCHANGE_S, minds_age=True, learns=True),
    Strategy.LEAST_WORK_LATE: Ways(EXCHANGE_S, minds_age=True, learns=True, late=True),
}


class EngineKind(msgspec.Struct, frozen=True):
    """A group of identical engines."""

    accelerator: str
    count: int
    max_num_seqs: int


class Served(msgspec.Struct):
    """One request's result; times are seconds since it arrived."""

    request: TraceRequest
    engine: int = -1
    first_s: float | None = None
    end_s: float | None = None


class SharedLoad(NamedTuple):
    """The report of one agent to the others."""

    loads: list[Load]
    """The agent's reservations, by engine."""
    head: QueueHead | None
    """The head of the agent's queue."""
    prefixes: dict[str, list[int]]
    """Keys of the prefixes that it sent since the last report, by engine."""


class Region:
    """The engines, the agents, and all requests of a run."""

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
        queueing: Queueing | None = None,
    ) -> None:
        """Create an idle region; the same `seed` gives the same run.

        Args:
            limits_tell: whether clients set each response's limit to its actual length; else they set no limit.
            queueing: order of the agents' queues; None for the default of models.
        """
        self.limits_tell = limits_tell
        self.queueing = queueing or Queueing()
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
        """Send each request to a random agent, and run until the last one is answered."""
        for request in requests:
            agent = self._rng.choice(self.agents)
            self.clock.at(request.at_s, partial(agent.arrive, request))
        if self._ways.exchange_s is not None:
            self.clock.at(self._ways.exchange_s, partial(self._exchange, self._ways.exchange_s))
        if self._ways.learns or self._ways.minds_age:
            self.clock.at(RECOUNT_S, self._recount)
        self._unanswered = len(requests)
        while self._unanswered:
            self.clock.step()

    def answered(self) -> None:
        """Count a completed request."""
        self._unanswered -= 1

    def _exchange(self, every_s: float) -> None:
        """Exchange load: all agents report before any agent applies the reports."""
        shared = [agent.published() for agent in self.agents]
        for agent, own in zip(self.agents, shared, strict=True):
            agent.receive([other for other in shared if other is not own])
        self.clock.at(self.clock.now + every_s, partial(self._exchange, every_s))

    def _recount(self) -> None:
        for agent in self.agents:
            agent.recount()
        self.clock.at(self.clock.now + RECOUNT_S, self._recount)


class SimulatedAgent:
    """One agent: its accounts of the engines, its chooser, and its queue."""

    def __init__(
        self, region: Region, number: int, strategy: Strategy, cost: Cost, specs: Sequence[EngineKind], rng: Random
    ) -> None:
        """Create an agent that has only the configured properties of the engines."""
        self.queue: FairQueue[Served] = FairQueue(number << 32)
        self._region = region
        self._round_robin = strategy is Strategy.ROUND_ROBIN
        self._ways = WAYS[strategy]
        self._cost = cost
        self._other_heads: list[QueueHead] = []
        self._heard_at = 0.0
        self._yields = False
        self._turn = rng.randrange(len(specs))
        self._chooser = EndpointChooser(rng)
        self._chooser.affinity.publishes = self._ways.exchange_s is not None
        self._pool: PoolAccount[EndpointAccount] = PoolAccount(PRIOR_SERVICE_S)
        queued = 1 if self._ways.late else UNBOUNDED
        self._pool.set_endpoints(
            [
                EndpointAccount(
                    EndpointView(f"engine-{n}", spec.max_num_seqs, spec.max_num_seqs + queued, ready=True),
                    spec.accelerator,
                )
                for n, spec in enumerate(specs)
            ]
        )
        for endpoint in self._pool.endpoints:
            endpoint.pools = (self._pool,)
        self.recount()

    def arrive(self, request: TraceRequest) -> None:
        """Accept a request of a client."""
        served, now = Served(request), self._region.clock.now
        self._region.served.append(served)
        give_up_at = now + MAX_WAIT_S * UNBOUNDED
        if self.queue.must_queue(0, now, self._other_heads) or not self._place(served):
            work = self._estimate(request).work
            urgency = urgency_at(
                self._region.queueing, now, give_up_at, work.prefill_s + work.decode_s, PRIOR_SERVICE_S
            )
            self.queue.join(served, "", 0, 0, now, give_up_at, urgency_at=urgency)
            self._serve()

    def published(self) -> SharedLoad:
        """Return this agent's report to the others."""
        loads = [endpoint.local_load for endpoint in self._pool.endpoints]
        return SharedLoad(loads, self.queue.own_head(), self._chooser.affinity.take_unpublished())

    def receive(self, others: Sequence[SharedLoad]) -> None:
        """Apply the other agents' reservations and queue heads."""
        self._heard_at = self._region.clock.now
        for index, endpoint in enumerate(self._pool.endpoints):
            loads = [other.loads[index] for other in others]
            remote = Load(
                sum([load.requests for load in loads]),
                sum([load.prefill_us for load in loads]),
                sum([load.decode_us for load in loads]),
            )
            if remote != endpoint.remote_load:
                endpoint.set_remote_load(remote)
        self._other_heads = [other.head for other in others if other.head is not None]
        for other in others:
            for engine, prefixes in other.prefixes.items():
                self._chooser.affinity.receive(engine, prefixes, self._heard_at)
        self._serve()

    def recount(self) -> None:
        """Update the learned service times from recent completions."""
        self._pool.recount()
        if self._ways.learns:
            self._pool.update_speeds()

    def _place(self, served: Served) -> bool:
        clock, request = self._region.clock, served.request
        estimate = self._estimate(request)
        chosen = self._choose(estimate)
        if chosen is None:
            return False
        endpoint, spared_s = chosen
        placement = Placement(endpoint, estimate, spared_s, clock.now)
        placement.take()
        served.engine = self._pool.positions[endpoint.name]

        def on_first() -> None:
            served.first_s = clock.now - request.at_s
            if placement.first_byte(clock.now):
                placement.end_prefill()
                self._chooser.learn_first_byte(placement, clock.now)

        def on_end() -> None:
            served.end_s = clock.now - request.at_s
            self._region.answered()
            placement.release()
            endpoint.completed(clock.now - placement.since)
            self._chooser.learn_response(placement, clock.now, (_usage(request),))
            self._serve()

        sequence = EngineSequence(request.prompt_tokens, max(1, request.output_tokens), request.prefix_blocks)
        self._region.engines[served.engine].submit(sequence, on_first, on_end)
        return True

    def _choose(self, estimate: WorkEstimate) -> tuple[EndpointAccount, float] | None:
        """The endpoint and the prefill (s) that its cache spares; None where no endpoint has room."""
        now = self._region.clock.now
        if self._round_robin:
            self._turn = (self._turn + 1) % self._pool.size
            return self._pool.endpoints[self._turn], 0.0
        age_s = now - self._heard_at if self._ways.minds_age else 0.0
        chosen = self._chooser.choose(self._pool, estimate, (), age_s, now)
        return None if isinstance(chosen, Reason) else chosen

    def _estimate(self, request: TraceRequest) -> WorkEstimate:
        limit = max(1, request.output_tokens) if self._region.limits_tell else None
        ask = CostInputs(body_bytes=request.prompt_tokens * BYTES_PER_TOKEN + OVERHEAD_BYTES, max_tokens=limit)
        work = NO_WORK if self._round_robin else self._chooser.expectations.estimate(self._cost, "", "", ask)
        estimate = WorkEstimate("", "", self._cost, ask, work, streaming=True)
        if self._ways.learns:
            estimate.prefix = _prefix_keys(request)
        return estimate

    def _serve(self) -> None:
        left_to, unfinished = self.queue.serve(self, self._region.clock.now)
        if left_to is not None and not self._yields:
            self._yields = True
            self._region.clock.at(self._region.clock.now + YIELD_S, partial(self._end_turn, left_to))
        if unfinished:
            self._serve()

    def _end_turn(self, left_to: QueueHead) -> None:
        self._yields = False
        self.queue.end_turn(left_to, self._region.clock.now, has_room=self.has_room())
        self._serve()

    def has_room(self) -> bool:
        """Whether an engine may take one more request."""
        return self._pool.has_room

    def other_heads(self, now: float) -> Sequence[QueueHead]:
        """The heads that the other agents last reported."""
        return self._other_heads

    def group(self, item: Served, now: float) -> str | None:
        """All requests may use the same engines."""
        return ""

    def represents_group(self, item: Served) -> bool:
        """What is closed to one request is closed to all."""
        return True

    def ask(self, item: Served, now: float) -> bool | None:
        """Place a waiting request; None where no engine has room."""
        return self._place(item) or None

    def deliver(self, entry: QueuedRequest[Served], answer: bool, now: float) -> None:
        """Nothing: the request was placed when it was asked for."""


def _prefix_keys(request: TraceRequest) -> list[int]:
    """Keys of the leading blocks of a prompt, of which several are in one block of the trace."""
    spans = request.prefix_blocks[: request.prompt_tokens // BLOCK_TOKENS]
    keys = [span * BLOCKS_PER_SPAN + part for span in spans for part in range(BLOCKS_PER_SPAN)]
    return keys[:MAX_BLOCKS]


def _usage(request: TraceRequest) -> bytes:
    """The end of a response as engines send it."""
    return b'{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (
        request.prompt_tokens,
        max(1, request.output_tokens),
    )
