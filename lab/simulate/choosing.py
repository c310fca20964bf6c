"""Compares endpoint selection strategies on the same requests, engines and agents."""

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
"""Cost of the model in policies/planet/models.yaml."""

MIXED = (EngineKind("h100", 4, 4), EngineKind("a100", 6, 4), EngineKind("l40s", 6, 4))
"""Sixteen engines. A stream on the slowest engine takes four times as long as on the fastest engine."""

AGENTS = 8
REQUESTS_PER_S = (15.0, 26.0)
"""Chat rates that MIXED serves with free slots, and with all slots in use."""

WARM_UP_S = 20.0
"""Requests that arrive earlier (s) are not counted, since engines start idle and agents without measurements."""


STALE_S = 2.0
"""Age (s) of a stale view."""


class Strategy(StrEnum):
    """Endpoint selection strategies."""

    ROUND_ROBIN = "round robin"
    LEAST_REQUEST_LOCAL = "least request, own view"
    LEAST_REQUEST_STALE = "least request, stale shared view"
    TWO_CHOICES_STALE = "two choices, stale shared view"
    LEAST_REQUEST_SHARED = "least request, shared view"
    LEAST_WORK = "least work, shared view"
    LEAST_WORK_LATE = "least work, shared view, late binding"


class Setup(NamedTuple):
    """The contender of a strategy, and the age (s) of its shared view; None for the product's exchange of load."""

    contender: str
    view_age_s: float | None = None


SETUPS = {
    Strategy.ROUND_ROBIN: Setup("round robin"),
    Strategy.LEAST_REQUEST_LOCAL: Setup(LOCAL_LEAST_REQUEST),
    Strategy.LEAST_REQUEST_STALE: Setup(GLOBAL_LEAST_REQUEST, STALE_S),
    Strategy.TWO_CHOICES_STALE: Setup(SHARED_TWO_CHOICES, STALE_S),
    Strategy.LEAST_REQUEST_SHARED: Setup(GLOBAL_LEAST_REQUEST),
    Strategy.LEAST_WORK: Setup(EARLY),
    Strategy.LEAST_WORK_LATE: Setup(PENSTOCK),
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
    """Run each strategy on the same chat requests, which arrive as a Poisson process.

    Args:
        duration_s: duration (s) of arrivals; longer than WARM_UP_S.
        seed: seed of the random numbers; equal seeds give equal outcomes.
    """
    requests = generate(duration_s, Random(seed), Arrivals(requests_per_s, rate_cv=0.0, dwell_s=duration_s))
    outcomes = []
    for strategy in strategies:
        setup = SETUPS[strategy]
        fleet = partial(ChatFleet, model=MODEL, cost=COST, kinds=MIXED, exact_limits=False)
        region = run(setup.contender, fleet, requests, agents=agents, seed=seed, view_age_s=setup.view_age_s)
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
