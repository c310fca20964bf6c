"""Compares endpoint selection strategies with the same requests, engines and agents."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from random import Random
from statistics import pstdev
from typing import NamedTuple

import msgspec

from lab.quantile import quantile
from lab.simulate.contenders import (
    EARLY,
    GLOBAL_LEAST_REQUEST,
    LOCAL_LEAST_REQUEST,
    PENSTOCK,
    SHARED_TWO_CHOICES,
    run,
)
from lab.simulate.fleets import ChatFleet, EngineKind
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


STALE_S = 2.0
"""Age (s) of a view that is too old."""


class Strategy(StrEnum):
    """How agents select endpoints."""

    ROUND_ROBIN = "round robin"
    LEAST_REQUEST_LOCAL = "least request, own view"
    LEAST_REQUEST_STALE = "least request, stale shared view"
    TWO_CHOICES_STALE = "two choices, stale shared view"
    LEAST_REQUEST_SHARED = "least request, shared view"
    LEAST_WORK = "least work, shared view"
    LEAST_WORK_LATE = "least work, shared view, late binding"


class Way(NamedTuple):
    """The contender of a strategy, and the age (s) of its view; None for the exchange of the product."""

    contender: str
    view_age_s: float | None = None


WAYS = {
    Strategy.ROUND_ROBIN: Way("round robin"),
    Strategy.LEAST_REQUEST_LOCAL: Way(LOCAL_LEAST_REQUEST),
    Strategy.LEAST_REQUEST_STALE: Way(GLOBAL_LEAST_REQUEST, STALE_S),
    Strategy.TWO_CHOICES_STALE: Way(SHARED_TWO_CHOICES, STALE_S),
    Strategy.LEAST_REQUEST_SHARED: Way(GLOBAL_LEAST_REQUEST),
    Strategy.LEAST_WORK: Way(EARLY),
    Strategy.LEAST_WORK_LATE: Way(PENSTOCK),
}


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
        way = WAYS[strategy]
        fleet = partial(ChatFleet, model=MODEL, cost=COST, kinds=MIXED, limits_tell=False)
        region = run(way.contender, fleet, requests, agents=agents, seed=seed, view_age_s=way.view_age_s)
        counted = [request for request in region.served if request.request.at_s >= WARM_UP_S]
        first_s = [request.first_s for request in counted if request.first_s is not None]
        end_s = [request.end_s for request in counted if request.end_s is not None]
        use = region.use()
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
