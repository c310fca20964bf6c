"""What a share table costs, by the objective that the linear program minimises: the one yardstick for every planner."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from penstock.planning.linear_program.n_minus_one import Confinements, by_group, worst
from penstock.planning.linear_program.problem import Ints, Prices, Problem, located, summed
from penstock.planning.linear_program.waiting_cost import PIECES, Floats
from penstock.planning.share_moves import Key


class Cost(msgspec.Struct, frozen=True):
    """Where the cost of a plan comes from, in seconds of latency times requests per second."""

    round_trips: float = 0.0
    queueing: float = 0.0
    egress: float = 0.0
    gpu: float = 0.0
    change: float = 0.0
    reserve: float = 0.0
    """What the loss of one region would leave without a place, priced."""
    past_target: float = 0.0
    no_room: float = 0.0

    @property
    def total(self) -> float:
        """What the planner minimises."""
        return float(sum(msgspec.structs.astuple(self)))

    def __add__(self, other: Cost) -> Cost:
        """Costs of two models add up."""
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Cost(*(a + b for a, b in zip(mine, theirs, strict=True)))


def fill(problem: Problem, load_per_s: Floats) -> Floats:
    """How much of each piece of each pool a load takes, cheapest first."""
    below = np.cumsum(problem.piece_per_s[:, :-1], axis=1)
    start = np.concatenate([np.zeros((len(below), 1)), below], axis=1)
    taken: Floats = np.clip(load_per_s[:, None] - start, 0.0, problem.piece_per_s)
    return taken


def evaluate(problem: Problem, sets: Confinements | None, price: Prices, key: Ints, pool: Ints, flow: Floats) -> Cost:
    """The cost of flows by (key, pool), each pair at most once.

    Args:
        sets: where demand is confined; None weighs no reserve.
        flow: requests per second.
    """
    shape = problem.shape
    load = summed(pool, flow, len(shape.pools))
    taken = fill(problem, load)
    origin = shape.origin_of[key]
    egress = float(flow @ problem.egress_s[origin, pool])
    reserve = 0.0
    if sets is not None:
        missing = worst(sets, by_group(problem, key, pool, flow), load, problem.capacity_per_s)
        reserve = price.reserve * float(missing.sum())
    return Cost(
        round_trips=float(flow @ problem.reach_s[origin, pool]) - egress,
        queueing=float((taken[:, : PIECES - 2] * problem.piece_cost_s[:, : PIECES - 2]).sum()),
        egress=egress,
        gpu=float(load @ problem.gpu_s),
        change=float(problem.changing_s(key, pool) @ _moved(problem, key, pool, flow)),
        reserve=reserve,
        past_target=price.past_target * float(taken[:, PIECES - 2].sum()),
        no_room=price.no_room * float(taken[:, PIECES - 1].sum()),
    )


def flows(problem: Problem, shares: Mapping[Key, Mapping[str, float]]) -> tuple[Ints, Ints, Floats]:
    """Share tables as flows by (key, pool), for `evaluate`; keys without a table and unknown pools are left out."""
    place = {name: at for at, name in enumerate(problem.shape.pools)}
    rows = [
        (at, place[server], problem.demand[at] * share)
        for at, key in enumerate(problem.shape.keys)
        for server, share in shares.get(key, {}).items()
        if server in place
    ]
    keys, pools, amounts = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(keys, dtype=np.intp), np.array(pools, dtype=np.intp), np.array(amounts, dtype=np.float64)


def _moved(problem: Problem, key: Ints, pool: Ints, flow: Floats) -> Floats:
    """Requests per second, of each flow, that the plan in force has elsewhere."""
    held = problem.held
    pools = len(problem.shape.pools)
    at, there = located(held.key * pools + held.pool, key * pools + pool)
    stays = np.zeros(len(flow))
    stays[there] = held.stays_per_s(problem.demand)[at[there]]
    return np.maximum(0.0, flow - stays)
