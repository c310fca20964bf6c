"""Measures tail latencies of the `bench-live` workloads on a virtual clock, over many rounds.

The live benchmark counts a few hundred requests, so its 99th percentile depends on a few requests and on the load of
the machine. The simulation runs new workloads of the same kind in each round, with the same engines and the product's
routing code. The cost of the proxy itself is not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from lab.bench.live.fleet import ACCELERATORS, MAX_NUM_SEQS, workload_of
from lab.quantile import quantile
from lab.simulate.choosing import COST, MODEL
from lab.simulate.contenders import LOCAL_LEAST_REQUEST, PENSTOCK, run
from lab.simulate.fleets import ChatFleet, EngineKind
from lab.traces.conversations import generate_conversations
from lab.traces.trace import TraceRequest
from penstock.policy.policy import Queueing

ENGINES_PER_ACCELERATOR = 3
"""Number of engines of each accelerator, as in the default of the live benchmark."""

LIVE = tuple(EngineKind(accelerator, ENGINES_PER_ACCELERATOR, MAX_NUM_SEQS) for accelerator in ACCELERATORS)

COMPARED = (LOCAL_LEAST_REQUEST, PENSTOCK)
"""The compared contenders. LOCAL_LEAST_REQUEST represents nginx and HAProxy, whose instances do not share counts."""


class Round(msgspec.Struct, frozen=True):
    """One generated workload and its seed."""

    seed: int
    requests: tuple[TraceRequest, ...]


class Tail(msgspec.Struct, frozen=True):
    """Latency quantiles (s) of a contender over all rounds."""

    contender: str
    agents: int
    requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    e2e_p999_s: float


def rounds_of(trace: Path | None, rate_per_s: float, seconds: float, count: int, seed: int) -> list[Round]:
    """Return `count` workloads of the live benchmark with successive seeds, in the time of the modelled hardware.

    Raises:
        TraceError: the trace is invalid.
    """
    found = []
    for number in range(seed, seed + count):
        planned = workload_of(trace, rate_per_s, seconds, 1.0, Random(number))
        requests = tuple(msgspec.structs.replace(request.lengths, at_s=request.at_s) for request in planned)
        found.append(Round(number, requests))
    return found


def conversation_rounds(rate_per_s: float, seconds: float, count: int, seed: int) -> list[Round]:
    """Return `count` workloads of conversations with high prefix reuse and successive seeds."""
    return [
        Round(number, tuple(generate_conversations(seconds, rate_per_s, Random(number))))
        for number in range(seed, seed + count)
    ]


def measure_tails(
    contender: str, agents: int, rounds: Sequence[Round], warm_up_s: float, queueing: Queueing | None = None
) -> Tail:
    """Run a contender on all rounds, each with new engines and agents, and return its latency quantiles.

    Args:
        warm_up_s: requests that arrive before this time (s) in a round are not counted.
        queueing: queue order of Penstock's agents; None for the default of models.
    """
    first_s: list[float] = []
    end_s: list[float] = []
    for round_ in rounds:
        fleet = partial(ChatFleet, model=MODEL, cost=COST, kinds=LIVE, exact_limits=True)
        region = run(contender, fleet, round_.requests, agents=agents, seed=round_.seed, queueing=queueing)
        counted = [served for served in region.served if served.request.at_s >= warm_up_s]
        first_s += [served.first_s for served in counted if served.first_s is not None]
        end_s += [served.end_s for served in counted if served.end_s is not None]
    return Tail(
        contender,
        agents,
        len(end_s),
        *(round(quantile(first_s, part) or 0.0, 4) for part in (0.5, 0.99)),
        *(round(quantile(end_s, part) or 0.0, 4) for part in (0.5, 0.99, 0.999)),
    )
