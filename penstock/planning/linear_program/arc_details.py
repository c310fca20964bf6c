"""The detail of each arc of a plan: the reason why this part of the demand is served away from its home."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from penstock.planning.linear_program.arrays import Floats, Ints
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.waiting_cost import WAITING_PIECES
from penstock.planning.share_moves import Key

HOME_IS_FULL = "home is filled to its target"
COSTS_LESS = "round trip, queueing, egress and GPU time together cost less here"
KEEPS_RESERVE = "keeps capacity free for traffic that moves if a region is lost"
LEAVING = "moves to another region, step by step"

FULL = 1.0 - 1e-6
"""A pool with this part of its target load is full."""


class ArcDetails:
    """Returns the detail of an arc; the `Detail` of `penstock.planning.plan_slices`.

    Args:
        answers: the flows that the plan was computed from, by model.
        targets: the shares that the plan moves towards, by key.
        distances: the distances of the policy.
    """

    def __init__(
        self, answers: Iterable[Flows], targets: Mapping[Key, Mapping[str, float]], distances: Distances
    ) -> None:
        self._targets = targets
        self._origins = distances.index
        self._pools: dict[str, tuple[dict[str, int], Floats, list[bool], list[float], list[float]]] = {}
        for flows in answers:
            problem, load = flows.problem, flows.load_per_s
            per_pool = problem.shape.min_of_pools
            filled = load >= FULL * problem.target_utilisation * problem.capacity_per_s
            full = per_pool(filled.astype(np.float64)) > 0.0
            edges = np.cumsum(problem.piece_per_s[:, :WAITING_PIECES], axis=1)
            # At the edge of a piece, one request less saves less than one request more costs.
            fewer = per_pool(_price_at(problem, (load[:, None] > edges / FULL).sum(axis=1)))
            more = per_pool(_price_at(problem, (load[:, None] >= edges * FULL).sum(axis=1)))
            for model in problem.shape.models:
                place = {pool.region: at for at, pool in enumerate(problem.shape.pools) if pool.model == model}
                self._pools[model] = (place, problem.reach_s, full.tolist(), fewer.tolist(), more.tolist())

    def __call__(self, key: Key, home: str, server: str) -> str:
        """Return the reason why `server` serves some of the demand of `key`, whose nearest region is `home`."""
        if server not in self._targets[key]:
            return LEAVING
        place, reach_s, full, fewer, more = self._pools[key.model]
        here, there, origin = place[home], place[server], self._origins[key.origin]
        if full[here]:
            return HOME_IS_FULL
        at_home, away = reach_s[origin, here] + more[here], reach_s[origin, there] + fewer[there]
        return COSTS_LESS if away < at_home else KEEPS_RESERVE


def _price_at(problem: Problem, piece: Ints) -> Floats:
    """By group: the cost (s) of GPU time and waiting for one unit of work in this piece of its load."""
    at = np.minimum(piece, WAITING_PIECES - 1)[:, None]
    price: Floats = problem.gpu_s + np.take_along_axis(problem.piece_cost_s, at, axis=1)[:, 0]
    return price
