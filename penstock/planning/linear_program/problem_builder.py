"""Builds one problem per model from demand, supply and the plan in force."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.fleet.capacity import Supply
from penstock.fleet.snapshot import Demand
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions
from penstock.planning.egress_cost import egress_cost
from penstock.planning.linear_program.arrays import Flags, Floats, Ints
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.n_minus_one import confinements
from penstock.planning.linear_program.problem import Held, Problem, Shape
from penstock.planning.linear_program.waiting_cost import pieces
from penstock.planning.plan import ClassPlan
from penstock.planning.share_moves import Key
from penstock.policy.policy import MS_PER_S, SECONDS_PER_HOUR, Model, Policy

MIN_DEMAND_PER_S = 1e-3
"""Demand (requests/s) assumed for a class without demand, so that it has shares."""

MIN_SLOTS = 1e-3
"""Minimum slots of a pool that can serve, whatever the age of its last report."""

TIE_S = 1e-6
"""Cost (s) per position in the order of region names, which breaks ties between regions."""


class ProblemBuilder:
    """Builds problems under one policy. Returns the same `Shape` object while the shape of a model stays the same.

    Args:
        policy: the policy version.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.digest = policy.digest()
        self.distances = Distances(policy)
        self._shapes: dict[str, Shape] = {}

    def problems(
        self,
        demands: Mapping[Key, Demand],
        supply: Mapping[tuple[str, str], Supply],
        before: Mapping[Key, ClassPlan],
        interventions: Interventions = NO_INTERVENTIONS,
    ) -> list[Problem]:
        """One problem per model that has both demand and a region that can serve it, in the order of model names.

        Args:
            demands: demand by key, for models and origins of the policy.
            supply: capacity by (region, model).
            before: the plan's entries in force, by key.
            interventions: limits on the share that may leave its origin; `demands` and `supply` respect them already.
        """
        demands_of: dict[str, dict[Key, Demand]] = {}
        for key, demand in demands.items():
            demands_of.setdefault(key.model, {})[key] = demand
        supply_of: dict[str, dict[str, Supply]] = {}
        for (region, model), capacity in supply.items():
            supply_of.setdefault(model, {})[region] = capacity
        return [
            self._problem(self.policy.models[model], demands_of[model], supply_of[model], before, interventions)
            for model in sorted(demands_of.keys() & supply_of.keys())
        ]

    def _problem(
        self,
        model: Model,
        demands: Mapping[Key, Demand],
        supply: Mapping[str, Supply],
        before: Mapping[Key, ClassPlan],
        interventions: Interventions,
    ) -> Problem:
        shape = self._shape(model.name, demands, supply)
        pools = [supply.get(name) for name in shape.pools]
        slots = np.array([max(pool.slots, MIN_SLOTS) if pool is not None else 0.0 for pool in pools])
        service_s = np.array([pool.service_s if pool is not None else 1.0 for pool in pools])
        max_share = np.array([pool.max_share if pool is not None else 1.0 for pool in pools])
        uncapped = np.any(shape.permitted[:, (slots > 0.0) & (max_share >= 1.0)], axis=1)
        home, origin = self._home(shape, slots > 0.0), self._origin(shape)
        demand = np.maximum([class_demand.requests_per_s for class_demand in demands.values()], MIN_DEMAND_PER_S)
        objective = self.policy.objective
        target = self.policy.spillover.target_utilisation
        reach_s, egress_s = self._reach(model, shape)
        widths, costs = pieces(slots, service_s, target, objective.queueing_weight)
        s_per_cost = objective.latency_ms_per_cost / MS_PER_S
        per_hour = np.array([self.policy.regions[name].cost_per_gpu_hour for name in shape.pools])
        return Problem(
            shape=shape,
            demand=np.where(home >= 0, demand, 0.0),
            slots=slots,
            service_s=service_s,
            max_share=max_share,
            capped=uncapped[shape.group_of],
            target_utilisation=target,
            reach_s=reach_s,
            egress_s=egress_s,
            gpu_s=np.where(slots > 0.0, s_per_cost * per_hour * service_s / SECONDS_PER_HOUR, 0.0),
            piece_per_s=widths,
            piece_cost_s=costs,
            home=home,
            origin=origin,
            kept=np.where((origin >= 0) & (slots > 0.0)[origin], self._kept(shape, interventions), 0.0),
            held=_held(shape, before),
            change_s=objective.change_penalty_ms / MS_PER_S,
            survive_one_loss=objective.survive_one_loss,
        )

    def _shape(self, model: str, demands: Mapping[Key, Demand], supply: Mapping[str, Supply]) -> Shape:
        last = self._shapes.get(model)
        keys = tuple(demands)
        pools = tuple(sorted(supply.keys() | set(last.pools if last is not None else ())))
        members = {demand.residency: demand.regions for demand in demands.values()}
        groups = tuple(sorted(members))
        permitted = np.array([[pool in members[name] for pool in pools] for name in groups], dtype=np.bool_)
        place = {name: at for at, name in enumerate(groups)}
        group_of = np.array([place[demand.residency] for demand in demands.values()], dtype=np.intp)
        if (
            last is not None
            and (last.keys, last.pools, last.groups) == (keys, pools, groups)
            and np.array_equal(last.permitted, permitted)
            and np.array_equal(last.group_of, group_of)
        ):
            return last
        index = self.distances.index
        shape = self._shapes[model] = Shape(
            model=model,
            keys=keys,
            pools=pools,
            groups=groups,
            permitted=permitted,
            group_of=group_of,
            origin_of=np.array([index[key.origin] for key in keys], dtype=np.intp),
            pool_at=np.array([index[pool] for pool in pools], dtype=np.intp),
            confinements=confinements(permitted),
        )
        return shape

    def _reach(self, model: Model, shape: Shape) -> tuple[Floats, Floats]:
        """By (origin, pool): the cost (s) of reaching the pool, and the egress part of it."""
        per_gb = np.array([self.policy.regions[name].egress_cost_per_gb for name in self.distances.names])
        cost = egress_cost(model, per_gb[:, None], per_gb[None, shape.pool_at])
        cost[shape.pool_at, np.arange(len(shape.pools))] = 0.0
        egress_s = cost * self.policy.objective.latency_ms_per_cost / MS_PER_S
        rtt_s = self.distances.apart_ms[:, shape.pool_at] / MS_PER_S
        return rtt_s + egress_s + TIE_S * np.arange(len(shape.pools)), egress_s

    def _origin(self, shape: Shape) -> Ints:
        """By key: the pool of its origin; -1 if the origin has no permitted pool."""
        pool_at = np.full(len(self.distances.names), -1, dtype=np.intp)
        pool_at[shape.pool_at] = np.arange(len(shape.pools))
        origin = pool_at[shape.origin_of]
        return np.where((origin >= 0) & shape.permitted[shape.group_of, origin], origin, -1)

    def _home(self, shape: Shape, alive: Flags) -> Ints:
        """By key: the nearest permitted pool that can serve, the first by name among equals; -1 if there is none."""
        usable = (shape.permitted & alive[None, :])[shape.group_of]
        rtt_ms = np.where(usable, self.distances.apart_ms[:, shape.pool_at][shape.origin_of], np.inf)
        return np.where(usable.any(axis=1), rtt_ms.argmin(axis=1), -1)

    def _kept(self, shape: Shape, interventions: Interventions) -> Floats:
        """By key: the share (0-1) of its demand that may not leave its origin while the origin can serve."""
        kept = np.zeros(len(self.distances.names))
        if interventions:
            for at in np.unique(shape.origin_of).tolist():
                kept[at] = 1.0 - interventions.of(self.distances.names[at], shape.model).max_away
        return kept[shape.origin_of]


def _held(shape: Shape, before: Mapping[Key, ClassPlan]) -> Held:
    """The shares in force that can stay: those of regions that still have the model."""
    place = {name: at for at, name in enumerate(shape.pools)}
    planned = np.zeros(len(shape.keys), dtype=np.bool_)
    keys, pools, shares = [], [], []
    for at, key in enumerate(shape.keys):
        entry = before.get(key)
        if entry is None:
            continue
        planned[at] = True
        for arc in entry.arcs:
            pool = place.get(arc.server)
            if pool is not None and arc.share > 0.0:
                keys.append(at)
                pools.append(pool)
                shares.append(arc.share)
    return Held(
        np.array(keys, dtype=np.intp), np.array(pools, dtype=np.intp), np.array(shares, dtype=np.float64), planned
    )
