"""Compares learned slots with configured slots: one agent and one engine on the virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple

from lab.engine.batching import Sequence as EngineSequence
from lab.quantile import quantile
from lab.simulate.clock import VirtualClock
from lab.simulate.simulated_engine import SimulatedEngine
from penstock.health.concurrency_limit import ConcurrencyLimit, LimitBounds
from penstock.policy.policy import Cost, CostUnit

MODEL = "llama-3.1-8b"
ACCELERATOR = "h100"

COST = Cost(CostUnit.TOKEN, 0.000031, 0.0069)
"""Cost of the model in policies/planet/models.yaml."""

TICK_S = 0.2
"""Interval (s) at which an agent updates a learned limit."""

SIGNALS_S = 1.0
"""Interval (s) at which an agent reads the engine's metrics."""

Lengths = Callable[[Random], tuple[int, int]]
"""Returns random numbers of prompt tokens and output tokens."""


def chat(rng: Random) -> tuple[int, int]:
    """Return log-normal lengths of a chat: prompts of 16 to 8000 tokens, outputs of 4 to 1500 tokens."""
    return _lognormal(rng, 6.3, 1.0, 16, 8000), _lognormal(rng, 5.0, 0.9, 4, 1500)


def long_prompts(rng: Random) -> tuple[int, int]:
    """Return log-normal lengths dominated by prefill: prompts of 500 to 16000 tokens, outputs of 1 to 100 tokens."""
    return _lognormal(rng, 8.3, 0.6, 500, 16000), _lognormal(rng, 2.5, 0.8, 1, 100)


def short_answers(rng: Random) -> tuple[int, int]:
    """Return a prompt of 200 tokens and an exponential output length with a mean of 30 tokens."""
    return 200, max(1, int(rng.expovariate(1 / 30)))


class Done(NamedTuple):
    """A completed request."""

    at_s: float
    work_s: float
    took_s: float
    """Time (s) from the arrival at the agent to the last token."""


class SlowPeriod(NamedTuple):
    """A period in which the engine is slower by a factor."""

    begin_s: float
    end_s: float
    factor: float


class EngineTrial:
    """One engine behind one agent, which sends up to `slots` concurrent requests."""

    def __init__(
        self,
        lengths: Lengths,
        max_num_seqs: int,
        slots: int | LimitBounds,
        *,
        requests_per_s: float | None = None,
        signals: bool = True,
        slow: SlowPeriod | None = None,
        share: float = 1.0,
        seed: int = 1,
    ) -> None:
        """Create an idle engine.

        Args:
            slots: number of slots, or the bounds of learned slots.
            requests_per_s: rate of a Poisson process; None keeps a request waiting at all times.
            signals: whether the engine reports its load.
            slow: period in which each step of the engine takes longer.
            share: share (0-1) of the completions that the agent observes; the rest represents other agents' requests.
            seed: seed of the random numbers; equal seeds give equal runs.
        """
        self.clock = VirtualClock()
        self.engine = SimulatedEngine(self.clock, MODEL, ACCELERATOR, max_num_seqs)
        self.limit = ConcurrencyLimit(slots, 0.0) if isinstance(slots, LimitBounds) else None
        self.slots = slots if isinstance(slots, int) else self.limit.limit if self.limit is not None else 0
        self.done: list[Done] = []
        self.history: list[tuple[float, int]] = []
        """Time (s) and learned limit, including trials, at each update."""
        self._rng = Random(seed)
        self._lengths = lengths
        self._requests_per_s = requests_per_s
        self._share = share
        self._queue: deque[tuple[float, int, int]] = deque()
        self._in_flight = 0
        if self.limit is not None:
            self.clock.at(0.0, self._tick)
            if signals:
                self.clock.at(SIGNALS_S / 2, self._report)
        if requests_per_s is not None:
            self.clock.at(0.0, self._arrive)
        if slow is not None:
            self.clock.at(slow.begin_s, partial(self._slow_down, slow.factor))
            self.clock.at(slow.end_s, partial(self._slow_down, 1.0))
        self.clock.at(0.0, self._send)

    def run(self, until_s: float) -> None:
        """Run until the clock reaches `until_s`."""
        while self.clock.now < until_s:
            self.clock.step()

    def work_per_s(self, begin_s: float, end_s: float = inf) -> float:
        """Return the throughput (s of reference work per s) in a period."""
        end_s = min(end_s, self.clock.now)
        return sum(done.work_s for done in self.done if begin_s <= done.at_s < end_s) / (end_s - begin_s)

    def p99_s(self, begin_s: float) -> float:
        """Return p99 of the time (s) from arrival to the last token, for completions from `begin_s` on."""
        return quantile([done.took_s for done in self.done if done.at_s >= begin_s], 0.99) or 0.0

    def limits(self, begin_s: float, end_s: float = inf) -> Sequence[int]:
        """Return the learned limits in a period."""
        return [limit for at_s, limit in self.history if begin_s <= at_s < end_s]

    def _arrive(self) -> None:
        assert self._requests_per_s is not None
        self._queue.append((self.clock.now, *self._lengths(self._rng)))
        self._send()
        self.clock.at(self.clock.now + self._rng.expovariate(self._requests_per_s), self._arrive)

    def _send(self) -> None:
        while self._in_flight < self.slots:
            if self._requests_per_s is None:
                self._queue.append((self.clock.now, *self._lengths(self._rng)))
            if not self._queue:
                return
            self._submit(*self._queue.popleft())

    def _submit(self, arrived_at: float, prompt_tokens: int, output_tokens: int) -> None:
        sent_at = self.clock.now
        self._in_flight += 1
        streams, limit = self._in_flight, self.limit
        area = limit.advance(streams, sent_at) if limit is not None else 0.0

        def on_end() -> None:
            now = self.clock.now
            self._in_flight -= 1
            work_s = COST.input_unit_s * prompt_tokens + COST.output_unit_s * output_tokens
            if limit is not None and (self._share >= 1.0 or self._rng.random() < self._share):
                limit.advance(self._in_flight, now)
                limit.completed(area, streams, work_s, now - sent_at)
            self.done.append(Done(now, work_s, now - arrived_at))
            self._send()

        self.engine.submit(EngineSequence(prompt_tokens, output_tokens), lambda: None, on_end)

    def _tick(self) -> None:
        assert self.limit is not None
        self.slots = self.limit.tick(self._in_flight, self.clock.now)
        self.history.append((self.clock.now, self.slots))
        self._send()
        self.clock.at(self.clock.now + TICK_S, self._tick)

    def _report(self) -> None:
        assert self.limit is not None
        self.limit.reported(self.engine.waiting, self.engine.running, self.clock.now)
        self.clock.at(self.clock.now + SIGNALS_S, self._report)

    def _slow_down(self, factor: float) -> None:
        self.engine.slowness = factor


def _lognormal(rng: Random, mu: float, sigma: float, least: int, most: int) -> int:
    return max(least, min(most, int(rng.lognormvariate(mu, sigma))))
