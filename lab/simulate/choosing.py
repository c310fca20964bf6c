"""Compares endpoint selection strategies with the same requests, engines and agents."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import pstdev

import msgspec

from lab.quantile import quantile
from lab.simulate.region import EngineKind, Region, Strategy
from lab.traces.generate import Arrivals, generate
from penstock.policy.policy import Cost, CostUnit

MODEL = "llama-3.1-8b"

COST = Cost(CostUnit.TOKEN, 0.000031, 0.0069)
"""As in policies/planet/models.yaml."""

MIXED = (EngineKind("h100", 4, 4), EngineKind("a100", 6, 4), EngineKind("l40s", 6, 4))
"""Sixteen engines, of which a stream on the slowest takes four times as long as on the fastest."""

AGENTS = 8
REQUESTS_PER_S = (15.0, 26.0)
"""What MIXED serves of chat with some slots to spare, and what fills all of them."""

WARM_UP_S = 20.0
"""Earlier arrivals are not counted: engines start empty and agents without measurements."""


class Outcome(msgspec.Struct, frozen=True):
    """Latency (s) and engine use of one strategy."""

    strategy: Strategy
    requests: int
    first_p50_s: float
    first_p99_s: float
    end_p50_s: float
    end_p99_s: float
    use_deviation: float
    """Standard deviation of the engines' busy share (0-1)."""


def compare(
    strategies: Sequence[Strategy] = tuple(Strategy),
    *,
    agents: int = AGENTS,
    requests_per_s: float = REQUESTS_PER_S[0],
    duration_s: float,
    seed: int,
) -> list[Outcome]:
    """Ask the same chat requests, as a Poisson process, of each strategy.

    Args:
        duration_s: how long (s) requests arrive; longer than WARM_UP_S.
        seed: the same gives the same outcome.
    """
    requests = generate(duration_s, Random(seed), Arrivals(requests_per_s, rate_cv=0.0, dwell_s=duration_s))
    outcomes = []
    for strategy in strategies:
        region = Region(strategy, MODEL, COST, MIXED, agents, seed)
        region.run(requests)
        counted = [request for request in region.served if request.request.at_s >= WARM_UP_S]
        first_s = [request.first_s for request in counted if request.first_s is not None]
        end_s = [request.end_s for request in counted if request.end_s is not None]
        use = [engine.busy_s / region.clock.now for engine in region.engines]
        outcomes.append(
            Outcome(
                strategy,
                len(end_s),
                quantile(first_s, 0.5) or 0.0,
                quantile(first_s, 0.99) or 0.0,
                quantile(end_s, 0.5) or 0.0,
                quantile(end_s, 0.99) or 0.0,
                pstdev(use),
            )
        )
    return outcomes
