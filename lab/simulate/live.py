"""The mix of `bench-live` on a virtual clock: its engines, its trace and its rate, over as many rounds as tails need.

The live benchmark counts some hundred requests, so its 99th percentile stands on seven of them, and what else the
machine does moves it. Here the same workloads, drawn anew each round, meet the same engines and the router's own code
in simulated time. The cost of the proxy itself is not simulated.
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

EACH = 3
"""Engines of each accelerator, as in the live benchmark's default."""

LIVE = tuple(EngineKind(accelerator, EACH, MAX_NUM_SEQS) for accelerator in ACCELERATORS)

COMPARED = (LOCAL_LEAST_REQUEST, PENSTOCK)
"""What nginx and HAProxy do, each instance by what it sent itself, and what Penstock does."""


class Round(msgspec.Struct, frozen=True):
    """One draw of the workload."""

    seed: int
    requests: tuple[TraceRequest, ...]


class Tail(msgspec.Struct, frozen=True):
    """Latency quantiles over all rounds, in seconds since the request was sent."""

    contender: str
    agents: int
    requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    e2e_p999_s: float


def rounds_of(trace: Path | None, rate_per_s: float, seconds: float, count: int, seed: int) -> list[Round]:
    """The workloads of the live benchmark with seeds from `seed` on, in the time of the modelled hardware.

    Raises:
        TraceError: the trace cannot be used.
    """
    found = []
    for number in range(seed, seed + count):
        planned = workload_of(trace, rate_per_s, seconds, 1.0, Random(number))
        requests = tuple(msgspec.structs.replace(request.lengths, at_s=request.at_s) for request in planned)
        found.append(Round(number, requests))
    return found


def conversation_rounds(rate_per_s: float, seconds: float, count: int, seed: int) -> list[Round]:
    """Workloads of conversations with much prefix reuse; the args are those of `rounds_of`."""
    return [
        Round(number, tuple(generate_conversations(seconds, rate_per_s, Random(number))))
        for number in range(seed, seed + count)
    ]


def feel(
    contender: str, agents: int, rounds: Sequence[Round], warm_up_s: float, queueing: Queueing | None = None
) -> Tail:
    """Run the whole workload; each round starts with new engines and agents.

    Args:
        warm_up_s: what arrives before (s) in a round is not counted.
        queueing: order of the agents' queues; None for the default of models.
    """
    first_s: list[float] = []
    end_s: list[float] = []
    for round_ in rounds:
        fleet = partial(ChatFleet, model=MODEL, cost=COST, kinds=LIVE, limits_tell=True)
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
