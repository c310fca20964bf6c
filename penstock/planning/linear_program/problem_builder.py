"""From demand, supply and the plan in force to one problem a model, keeping what did not change since the last tick."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.fleet.capacity import Supply
from penstock.fleet.snapshot import Demand
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions
from penstock.planning.egress_cost import egress_cost
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.n_minus_one import Confinements, confinements
from penstock.planning.linear_program.problem import Flags, Held, Ints, Problem, Shape
from penstock.planning.linear_program.waiting_cost import Floats, pieces
from penstock.planning.plan import ClassPlan
from penstock.planning.share_moves import Key
from penstock.policy.policy import Model, Policy
from penstock.policy.units import MS_PER_S, SECONDS_PER_HOUR

MIN_DEMAND_PER_S = 1e-3
"""What a class without demand is planned for, so that its shares mean something."""

MIN_SLOTS = 1e-3
"""A pool that may be planned for counts as this many, however little of it is trusted yet."""

TIE_S = 1e-6
"""What one place in the order of names costs (s): equal regions are told apart by name, not by chance."""


class Builder:
    """Builds problems under one policy.

    Args:
        policy: the revision; another one needs another builder.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.digest = policy.digest()
        self.distances = Distances(policy)
        self._shapes: dict[str, Shape] = {}
        self._reach: dict[str, tuple[Shape, Floats, Floats]] = {}
        self._homes: dict[str, tuple[Shape, bytes, Ints]] = {}
        self._sets: dict[str, tuple[Shape, Confinements]] = {}

    def problems(
        self,
        demands: Mapping[Key, Demand],
        able: Mapping[tuple[str, str], Supply],
        before: Mapping[Key, ClassPlan],
        interventions: Interventions = NO_INTERVENTIONS,
    ) -> list[Problem]:
        """One problem for each model that somebody asks for and somebody can serve, by name.

        Args:
            demands: of models and origins that the policy knows.
            able: supply by (region, model).
            before: the entries in force to move from, by key.
            interventions: how much of a demand may leave its origin; `demands` and `able` are within them already.
        """
        asked: dict[str, dict[Key, Demand]] = {}
        for key, one in demands.items():
            asked.setdefault(one.model, {})[key] = one
        having: dict[str, dict[str, Supply]] = {}
        for (region, model), one_supply in able.items():
            having.setdefault(model, {})[region] = one_supply
        return [
            self._problem(self.policy.models[model], asked[model], having[model], before, interventions)
            for model in sorted(asked.keys() & having.keys())
        ]

    def confined(self, shape: Shape) -> Confinements:
        """Where a shape's demand is confined."""
        kept = self._sets.get(shape.model)
        if kept is None or kept[0] is not shape:
            kept = (shape, confinements(shape.permitted))
            self._sets[shape.model] = kept
        return kept[1]

    def _problem(
        self,
        model: Model,
        asked: Mapping[Key, Demand],
        having: Mapping[str, Supply],
        before: Mapping[Key, ClassPlan],
        interventions: Interventions,
    ) -> Problem:
        shape = self._shape(model.name, asked, having)
        supplies = [having.get(name) for name in shape.pools]
        slots = np.array([max(one.slots, MIN_SLOTS) if one is not None else 0.0 for one in supplies])
        service_s = np.array([one.service_s if one is not None else 1.0 for one in supplies])
        most = np.array([one.max_share if one is not None else 1.0 for one in supplies])
        whole = np.any(shape.permitted[:, (slots > 0.0) & (most >= 1.0)], axis=1)
        home = self._home(shape, slots > 0.0)
        origin = self._origin(shape)
        demand = np.maximum([one.requests_per_s for one in asked.values()], MIN_DEMAND_PER_S)
        objective = self.policy.objective
        target = self.policy.spillover.target_utilisation
        reach_s, egress_s = self._reaches(model, shape)
        widths, costs = pieces(slots, service_s, target, objective.queueing_weight)
        s_per_cost = objective.latency_ms_per_cost / MS_PER_S
        per_hour = np.array([self.policy.regions[name].cost_per_gpu_hour for name in shape.pools])
        return Problem(
            shape=shape,
            demand=np.where(home >= 0, demand, 0.0),
            slots=slots,
            service_s=service_s,
            most=most,
            capped=whole[shape.group_of],
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
            change_s=objective.change_ms / MS_PER_S,
            survive_one_loss=objective.survive_one_loss,
        )

    def _shape(self, model: str, asked: Mapping[Key, Demand], having: Mapping[str, Supply]) -> Shape:
        keys = tuple(asked)
        members = {one.residency: one.regions for one in asked.values()}
        groups = {name: members[name] for name in sorted(members)}
        place = {name: at for at, name in enumerate(groups)}
        group_of = np.array([place[one.residency] for one in asked.values()], dtype=np.intp)
        kept = self._shapes.get(model)
        pools = tuple(sorted(having.keys() | set(kept.pools if kept is not None else ())))
        if kept is not None and kept.same_as(keys, pools, groups, group_of):
            return kept
        shape = Shape(
            model=model,
            keys=keys,
            pools=pools,
            groups=tuple(groups),
            permitted=np.array([[pool in regions for pool in pools] for regions in groups.values()], dtype=np.bool_),
            group_of=group_of,
            origin_of=np.array([self.distances.index[key.origin] for key in keys], dtype=np.intp),
            pool_at=np.array([self.distances.index[pool] for pool in pools], dtype=np.intp),
        )
        self._shapes[model] = shape
        return shape

    def _reaches(self, model: Model, shape: Shape) -> tuple[Floats, Floats]:
        kept = self._reach.get(model.name)
        if kept is not None and kept[0] is shape:
            return kept[1], kept[2]
        per_gb = np.array([self.policy.regions[name].egress_cost_per_gb for name in self.distances.names])
        cost = egress_cost(model, per_gb[:, None], per_gb[None, shape.pool_at])
        cost[shape.pool_at, np.arange(len(shape.pools))] = 0.0
        egress_s = cost * self.policy.objective.latency_ms_per_cost / MS_PER_S
        rtt_s = self.distances.apart_ms[:, shape.pool_at] / MS_PER_S
        reach_s = rtt_s + egress_s + TIE_S * np.arange(len(shape.pools))
        self._reach[model.name] = (shape, reach_s, egress_s)
        return reach_s, egress_s

    def _origin(self, shape: Shape) -> Ints:
        """By key: the pool of its origin; -1 where there is none that it permits."""
        pool_at = np.full(len(self.distances.names), -1, dtype=np.intp)
        pool_at[shape.pool_at] = np.arange(len(shape.pools))
        origin = pool_at[shape.origin_of]
        return np.where((origin >= 0) & shape.permitted[shape.group_of, origin], origin, -1)

    def _kept(self, shape: Shape, interventions: Interventions) -> Floats:
        """By key: the part (0-1) of its demand that may not leave its origin while that serves."""
        kept = np.zeros(len(self.distances.names))
        if interventions:
            for at in np.unique(shape.origin_of).tolist():
                kept[at] = 1.0 - interventions.of(self.distances.names[at], shape.model).max_away
        return kept[shape.origin_of]

    def _home(self, shape: Shape, alive: Flags) -> Ints:
        """By key: the nearest permitted pool that is alive, names breaking ties; -1 where there is none."""
        kept = self._homes.get(shape.model)
        if kept is not None and kept[0] is shape and kept[1] == alive.tobytes():
            return kept[2]
        home = np.full(len(shape.keys), -1, dtype=np.intp)
        for group in range(len(shape.groups)):
            rows = np.flatnonzero(shape.group_of == group)
            columns = np.flatnonzero(shape.permitted[group] & alive)
            if len(columns):
                rtt_ms = self.distances.apart_ms[np.ix_(shape.origin_of[rows], shape.pool_at[columns])]
                home[rows] = columns[np.argmin(rtt_ms, axis=1)]
        self._homes[shape.model] = (shape, alive.tobytes(), home)
        return home


def _held(shape: Shape, before: Mapping[Key, ClassPlan]) -> Held:
    """What is in force, as far as it can stay: a server that no longer has the model holds nothing."""
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
