"""The cost of share tables by the objective of the linear program, which all planners are compared by."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.planning.linear_program.arrays import Floats, located
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.n_minus_one import worst
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.waiting_cost import WAITING_PIECES


class Cost(msgspec.Struct, frozen=True):
    """The parts of a plan's cost, in seconds of latency times requests per second."""

    round_trips: float = 0.0
    waiting: float = 0.0
    egress: float = 0.0
    gpu: float = 0.0
    change: float = 0.0
    reserve: float = 0.0
    """Cost of flow that would not fit after the loss of one region."""
    past_target: float = 0.0
    no_room: float = 0.0

    @property
    def total(self) -> float:
        """The objective of the planner."""
        return float(sum(msgspec.structs.astuple(self)))

    def __add__(self, other: Cost) -> Cost:
        """The sum of two costs."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Cost(*(first + second for first, second in pairs))


def evaluate(flows: Flows) -> Cost:
    """The cost of one problem's flows."""
    problem, key, pool, per_s = flows.problem, flows.key, flows.pool, flows.per_s
    price = problem.prices()
    load = flows.load_per_s
    taken = _filled(problem, load)
    origin = problem.shape.origin_of[key]
    egress = float(per_s @ problem.egress_s[origin, pool])
    reserve = 0.0
    if problem.survive_one_loss:
        missing = worst(problem.shape.confinements, flows.by_class(), load, problem.capacity_per_s)
        reserve = price.reserve * float(missing.sum())
    return Cost(
        round_trips=float(per_s @ problem.reach_s[origin, pool]) - egress,
        waiting=float((taken[:, :WAITING_PIECES] * problem.piece_cost_s[:, :WAITING_PIECES]).sum()),
        egress=egress,
        gpu=float(load @ problem.gpu_s),
        change=float(problem.changing_s(key, pool) @ _moved_per_s(flows)),
        reserve=reserve,
        past_target=price.past_target * float(taken[:, WAITING_PIECES].sum()),
        no_room=float(price.yields @ taken[:, WAITING_PIECES + 1] + price.no_room * taken[:, -1].sum()),
    )


def _filled(problem: Problem, load_per_s: Floats) -> Floats:
    """The part of a load (units/s) in each piece of each group, the cheapest pieces first."""
    below = np.cumsum(problem.piece_per_s[:, :-1], axis=1)
    start = np.concatenate([np.zeros((len(below), 1)), below], axis=1)
    taken: Floats = np.clip(load_per_s[:, None] - start, 0.0, problem.piece_per_s)
    return taken


def _moved_per_s(flows: Flows) -> Floats:
    """The part of each flow that the plan in force sends elsewhere."""
    held, pools = flows.problem.held, len(flows.problem.shape.pools)
    codes = held.key * pools + held.pool
    order = np.argsort(codes, kind="stable")
    at, there = located(codes[order], flows.key * pools + flows.pool)
    stays = np.zeros(len(flows.per_s))
    stays[there] = held.stays_per_s(flows.problem.demand)[order[at[there]]]
    return np.maximum(0.0, flows.per_s - stays)
