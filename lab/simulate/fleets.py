"""The engines of a region on the virtual clock, and the request properties that routers read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from lab.bench.live.fleet import ACCELERATORS, MAX_NUM_SEQS
from lab.engine.batching import Sequence as EngineSequence
from lab.quantile import quantile
from lab.simulate.baselines.balancer import Arrival, EngineReport
from lab.simulate.clock import Action, VirtualClock
from lab.simulate.simulated_engine import SimulatedEngine
from lab.traces.trace import BLOCK_TOKENS, COMMON_MAX_TOKENS, TraceRequest
from penstock.answers.token_counts import Usage
from penstock.cost.cost_estimate import OVERHEAD_BYTES
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.routing.affinity import BLOCK_BYTES, LONG_BLOCKS, MAX_BLOCKS, MAX_LONG_KEYS

BYTES_PER_TOKEN = 4

BLOCKS_PER_SPAN = BLOCK_TOKENS * BYTES_PER_TOKEN // BLOCK_BYTES
"""Blocks of the affinity index in one prefix block of a trace."""


class EngineKind(msgspec.Struct, frozen=True):
    """A group of identical engines."""

    accelerator: str
    count: int
    max_num_seqs: int
    speed: float = 1.0
    """Speed of image engines relative to the reference, and the weight in weighted balancers."""


CHAT_MODEL = "llama-3.1-8b"

CHAT_COST = Cost(CostUnit.TOKEN, 0.000031, 0.0069)
"""Cost of CHAT_MODEL in policies/planet/models.yaml."""

CHAT_ENGINES = tuple(EngineKind(accelerator, 3, MAX_NUM_SEQS) for accelerator in ACCELERATORS)
"""The engines of the live benchmark, with its default count."""


class ImageJob(msgspec.Struct, frozen=True):
    """A request of an image engine."""

    at_s: float
    pixels: int
    steps: int
    work_s: float
    """True service time (s) on an engine of speed 1. Routers can only estimate it."""
    tenant: str = ""
    """Tenant of the request; empty for one tenant."""


Request = TypeVar("Request", TraceRequest, ImageJob)
Read = TypeVar("Read", TraceRequest, ImageJob, contravariant=True)


class EngineFleet(Protocol[Read]):
    """The engines of a region, addressed by index."""

    kinds: tuple[EngineKind, ...]
    """Kind of each engine, by index."""
    cost: Cost
    streaming: bool

    def ask(self, request: Read) -> CostInputs:
        """Return the inputs of the cost estimate of a request."""

    def prefix_keys(self, request: Read) -> list[int]:
        """Return the affinity keys of the leading blocks of the prompt."""

    def usage(self, request: Read) -> Usage | None:
        """Return the usage that the engine reports; None without one."""

    def arrival(self, request: Read) -> Arrival:
        """Return the properties of a request that a baseline reads."""

    def true_work_s(self, request: Read, index: int) -> float:
        """Return the service time (s) of a request on an otherwise idle engine."""

    def submit(self, index: int, request: Read, on_first: Action, on_end: Action) -> None:
        """Send a request to an engine; the callbacks report its first and last byte."""

    def report(self, index: int) -> EngineReport:
        """Return the engine's load."""

    def busy_s(self, index: int) -> float:
        """Return the total busy time (s) of the engine."""


class ChatFleet:
    """Continuous-batching engines of a language model."""

    streaming = True

    def __init__(
        self, clock: VirtualClock, model: str, cost: Cost, kinds: Sequence[EngineKind], *, known_lengths: bool
    ) -> None:
        """Create idle engines.

        Args:
            known_lengths: whether `max_tokens` of each request is its output length; else it is COMMON_MAX_TOKENS.
        """
        self.kinds = _each(kinds)
        self.cost = cost
        self.prefill_tokens = 0
        """Prompt tokens that the engines have computed: those that no prefix cache contained."""
        self._known_lengths = known_lengths
        self._engines = [SimulatedEngine(clock, model, kind.accelerator, kind.max_num_seqs) for kind in self.kinds]

    def ask(self, request: TraceRequest) -> CostInputs:
        """As `EngineFleet.ask`."""
        limit = max(1, request.output_tokens) if self._known_lengths else COMMON_MAX_TOKENS
        return CostInputs(body_bytes=request.prompt_tokens * BYTES_PER_TOKEN + OVERHEAD_BYTES, max_tokens=limit)

    def prefix_keys(self, request: TraceRequest) -> list[int]:
        """As `EngineFleet.prefix_keys`; a block of the trace contains BLOCKS_PER_SPAN keys."""
        spans = request.prefix_blocks[: request.prompt_tokens // BLOCK_TOKENS]
        keys = [span * BLOCKS_PER_SPAN + part for span in spans for part in range(BLOCKS_PER_SPAN)]
        return keys[:MAX_BLOCKS] + keys[MAX_BLOCKS + LONG_BLOCKS - 1 :: LONG_BLOCKS][:MAX_LONG_KEYS]

    def usage(self, request: TraceRequest) -> Usage | None:
        """As `EngineFleet.usage`."""
        return Usage(request.prompt_tokens, max(1, request.output_tokens))

    def arrival(self, request: TraceRequest) -> Arrival:
        """As `EngineFleet.arrival`."""
        return Arrival(request.prompt_tokens, request.prefix_blocks, request.at_s)

    def true_work_s(self, request: TraceRequest, index: int) -> float:
        """As `EngineFleet.true_work_s`."""
        return self.cost.input_unit_s * request.prompt_tokens + self.cost.output_unit_s * request.output_tokens

    def submit(self, index: int, request: TraceRequest, on_first: Action, on_end: Action) -> None:
        """As `EngineFleet.submit`."""
        sequence = EngineSequence(request.prompt_tokens, max(1, request.output_tokens), request.prefix_blocks)

        def end() -> None:
            self.prefill_tokens += sequence.prompt_tokens - sequence.cached_tokens
            on_end()

        self._engines[index].submit(sequence, on_first, end)

    def report(self, index: int) -> EngineReport:
        """As `EngineFleet.report`."""
        engine = self._engines[index]
        return EngineReport(engine.running, engine.waiting, engine.kv_used)

    def busy_s(self, index: int) -> float:
        """As `EngineFleet.busy_s`."""
        return self._engines[index].busy_s


class ImageFleet:
    """Engines that run one image job at a time, in order of arrival."""

    streaming = False
    cost = Cost(CostUnit.MEGAPIXEL_STEP, 0.0, 0.1)

    def __init__(self, clock: VirtualClock, kinds: Sequence[EngineKind]) -> None:
        """Create idle engines."""
        self.kinds = _each(kinds)
        self._engines = [_SingleSlotEngine(clock, kind.speed) for kind in self.kinds]

    def ask(self, request: ImageJob) -> CostInputs:
        """As `EngineFleet.ask`."""
        return CostInputs(body_bytes=200, pixels=request.pixels, steps=request.steps)

    def prefix_keys(self, request: ImageJob) -> list[int]:
        """As `EngineFleet.prefix_keys`; image jobs have no prefix."""
        return []

    def usage(self, request: ImageJob) -> Usage | None:
        """As `EngineFleet.usage`; image responses contain no usage."""
        return None

    def arrival(self, request: ImageJob) -> Arrival:
        """As `EngineFleet.arrival`."""
        return Arrival(1, (), request.at_s)

    def true_work_s(self, request: ImageJob, index: int) -> float:
        """As `EngineFleet.true_work_s`."""
        return request.work_s / self.kinds[index].speed

    def submit(self, index: int, request: ImageJob, on_first: Action, on_end: Action) -> None:
        """As `EngineFleet.submit`."""
        self._engines[index].submit(request.work_s, on_first, on_end)

    def report(self, index: int) -> EngineReport:
        """As `EngineFleet.report`."""
        engine = self._engines[index]
        return EngineReport(min(1, engine.jobs), max(0, engine.jobs - 1), 0.0)

    def busy_s(self, index: int) -> float:
        """As `EngineFleet.busy_s`."""
        return self._engines[index].busy_s


class _SingleSlotEngine:
    def __init__(self, clock: VirtualClock, speed: float) -> None:
        self.busy_s = 0.0
        self._clock = clock
        self.speed = speed
        self._jobs: deque[tuple[float, Action, Action]] = deque()

    @property
    def jobs(self) -> int:
        """Jobs that run or wait."""
        return len(self._jobs)

    def submit(self, work_s: float, on_first: Action, on_end: Action) -> None:
        self._jobs.append((work_s / self.speed, on_first, on_end))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        self._clock.at(self._clock.now + self._jobs[0][0], self._end)

    def _end(self) -> None:
        service_s, on_first, on_end = self._jobs.popleft()
        self.busy_s += service_s
        if self._jobs:
            self._begin()
        on_first()
        on_end()


class LatencyEstimate:
    """Prequal's latency estimate: latencies of a server's recent requests by the number in flight at arrival."""

    def __init__(self) -> None:
        """Create an estimate without observations."""
        self._recent: deque[tuple[int, float]] = deque(maxlen=50)

    def observe(self, in_flight: int, latency_s: float) -> None:
        """Add a completed request."""
        self._recent.append((in_flight, latency_s))

    def at(self, in_flight: int) -> float:
        """Return the median latency (s) of the requests nearest to a number in flight; 0 without observations."""
        if not self._recent:
            return 0.0
        nearest = min(abs(count - in_flight) for count, _ in self._recent)
        near = [latency_s for count, latency_s in self._recent if abs(count - in_flight) == nearest]
        return quantile(near, 0.5) or 0.0


def _each(kinds: Sequence[EngineKind]) -> tuple[EngineKind, ...]:
    return tuple(kind for kind in kinds for _ in range(kind.count))


FleetFactory = Callable[[VirtualClock], EngineFleet[Request]]
