"""What the flows of a model mean: shares by key, what they cost, what they lack, and why each arc is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.fleet.capacity import Shortfall
from penstock.planning.change_limit import without_crumbs
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.n_minus_one import Confinements
from penstock.planning.linear_program.plan_cost import Cost, evaluate
from penstock.planning.linear_program.planned_shortfall import shortfalls
from penstock.planning.linear_program.problem import Ints, Problem, prices, summed
from penstock.planning.linear_program.waiting_cost import PIECES, Floats
from penstock.planning.share_moves import Key

HOME_IS_FULL = "home is filled to its target"
COSTS_LESS = "round trip, queueing, egress and GPU time together cost less here"
KEEPS_RESERVE = "keeps room where others must go if a region is lost"
LEAVING = "on its way elsewhere, step by step"

FULL = 1.0 - 1e-6
"""A pool at this part of its target is full."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """One model's demand as flows by (key, pool), in requests per second."""

    problem: Problem
    sets: Confinements
    key: Ints
    pool: Ints
    flow: Floats

    def load_per_s(self) -> Floats:
        """By pool: requests per second that it is sent."""
        return summed(self.pool, self.flow, len(self.problem.shape.pools))


def shares(one: Flows) -> dict[Key, dict[str, float]]:
    """By key, each with shares that sum to 1; keys that nobody can serve are left out."""
    shape = one.problem.shape
    tables: dict[Key, dict[str, float]] = {}
    split = set(np.flatnonzero(np.bincount(one.key, minlength=1) > 1).tolist())
    for key, pool, flow in zip(one.key.tolist(), one.pool.tolist(), one.flow.tolist(), strict=True):
        if key in split:
            tables.setdefault(shape.keys[key], {})[shape.pools[pool]] = flow
        else:
            tables[shape.keys[key]] = {shape.pools[pool]: 1.0}
    for key in split:
        tables[shape.keys[key]] = without_crumbs(tables[shape.keys[key]])
    return tables


def cost(one: Flows) -> Cost:
    """By the same objective, whatever decided the flows."""
    sets = one.sets if one.problem.survive_one_loss else None
    return evaluate(one.problem, sets, prices(one.problem, one.sets.max_confined), one.key, one.pool, one.flow)


def lacking(every: Iterable[Flows]) -> tuple[Shortfall, ...]:
    """What capacity is missing where, for all models."""
    return tuple(
        missing
        for one in every
        for missing in shortfalls(
            one.problem, one.sets, one.key, one.pool, one.flow, at_a_loss=one.problem.survive_one_loss
        )
    )


class Details:
    """Says of an arc what made it: the `Detail` of `penstock.planning.plan_slices`."""

    def __init__(
        self, every: Iterable[Flows], targets: Mapping[Key, Mapping[str, float]], distances: Distances
    ) -> None:
        self._targets = targets
        self._origins = distances.index
        self._pools: dict[str, tuple[dict[str, int], Floats, list[bool], list[float], list[float]]] = {}
        for one in every:
            problem = one.problem
            load = one.load_per_s()
            full = load >= FULL * problem.target_utilisation * problem.capacity_per_s
            edges = np.cumsum(problem.piece_per_s[:, : PIECES - 2], axis=1)
            # What one request fewer saves where a pool is used, and what one more costs where it could be.
            fewer = _price_at(problem, (load[:, None] > edges / FULL).sum(axis=1))
            more = _price_at(problem, (load[:, None] >= edges * FULL).sum(axis=1))
            place = {name: at for at, name in enumerate(problem.shape.pools)}
            self._pools[problem.shape.model] = (place, problem.reach_s, full.tolist(), fewer.tolist(), more.tolist())

    def __call__(self, key: Key, home: str, server: str) -> str:
        """Why some of the demand of `key`, whose nearest region is `home`, goes to `server`."""
        if server not in self._targets[key]:
            return LEAVING
        place, reach_s, full, fewer, more = self._pools[key.model]
        here, there, origin = place[home], place[server], self._origins[key.origin]
        if full[here]:
            return HOME_IS_FULL
        at_home, away = reach_s[origin, here] + more[here], reach_s[origin, there] + fewer[there]
        return COSTS_LESS if away < at_home else KEEPS_RESERVE


def _price_at(problem: Problem, piece: Ints) -> Floats:
    """By pool: what GPU time and queueing cost (s) for one request in this piece of its load."""
    at = np.minimum(piece, PIECES - 3)[:, None]
    price: Floats = problem.gpu_s + np.take_along_axis(problem.piece_cost_s, at, axis=1)[:, 0]
    return price
