"""Builds problems from demand, supply and the plan in force: one per model, or per set of models that share slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from penstock.fleet.capacity import Supply
from penstock.fleet.capacity_groups import coupled_models
from penstock.fleet.snapshot import Demand
from penstock.overrides.override_effects import NO_INTERVENTIONS, Interventions
from penstock.planning.egress_cost import egress_cost
from penstock.planning.linear_program.arrays import Flags, Floats, Ints
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.n_minus_one import confinements
from penstock.planning.linear_program.problem import Group, Held, Pool, Problem, Shape, TrafficClass
from penstock.planning.linear_program.waiting_cost import WAITING_PIECES, pieces
from penstock.planning.linear_program.yielding import yielding
from penstock.planning.measurements import Measurements
from penstock.planning.plan import ClassPlan
from penstock.planning.share_moves import Key
from penstock.policy.gpu_price import gpu_price
from penstock.policy.policy import MS_PER_S, SECONDS_PER_HOUR, Policy

MIN_DEMAND_PER_S = 1e-3
"""Demand (requests/s) assumed for a class without demand, so that it has shares."""

MIN_SLOTS = 1e-3
"""Minimum slots of a capacity group that can serve, whatever the age of its last report."""

TIE_S = 1e-6
"""Cost (s) per position in the order of region names, which breaks ties between regions."""


NOTHING_MEASURED = Measurements()


class ProblemBuilder:
    """Builds problems under one policy. Returns the same `Shape` object while the shape of a model stays the same.

    Args:
        policy: the policy version.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.digest = policy.digest()
        self.distances = Distances(policy)
        self._shapes: dict[tuple[str, ...], Shape] = {}
        self._priced_at = 0.0
        """Unix time (s) of the prices of the problems."""
        self._lag_ms = self.distances.deviations_ms(policy, {})
        self._bytes = NOTHING_MEASURED.message_bytes
        """Deviation (ms) of the measured round trips from those of the policy, by (origin, server)."""

    def problems(
        self,
        demands: Mapping[Key, Demand],
        supply: Mapping[tuple[str, str], Supply],
        before: Mapping[Key, ClassPlan],
        interventions: Interventions = NO_INTERVENTIONS,
        now: float = 0.0,
        measured: Measurements = NOTHING_MEASURED,
    ) -> list[Problem]:
        """The problems of all models that have both demand and a region that can serve them, in the order of names.

        Models that share slots, directly or through other models, are in one problem.

        Args:
            demands: demand by key, for models and origins of the policy.
            supply: capacity by (region, model).
            before: the plan's entries in force, by key.
            interventions: limits on the share that may leave its origin; `demands` and `supply` respect them already.
            now: Unix time (s), of the prices.
            measured: round trips and sizes of messages, in place of those of the policy.
        """
        self._lag_ms = self.distances.deviations_ms(self.policy, measured.round_trips_ms)
        self._bytes = measured.message_bytes
        self._priced_at = now
        demands_of: dict[str, dict[Key, Demand]] = {}
        for key, demand in demands.items():
            demands_of.setdefault(key.model, {})[key] = demand
        supply_of: dict[str, dict[Pool, Supply]] = {}
        shared: set[tuple[str, ...]] = set()
        for (region, model), capacity in supply.items():
            supply_of.setdefault(model, {})[Pool(region, model)] = capacity
            for group in capacity.shared:
                shared.add(tuple(name for name in group.models if name in demands_of))
        planned, coupled = demands_of.keys() & supply_of.keys(), coupled_models(shared)
        sets = {tuple(name for name in coupled.get(model, (model,)) if name in planned) for model in planned}
        return [
            self._problem(
                models,
                {key: demand for model in models for key, demand in demands_of[model].items()},
                {pool: capacity for model in models for pool, capacity in supply_of[model].items()},
                before,
                interventions,
            )
            for models in sorted(sets)
        ]

    def _problem(
        self,
        models: tuple[str, ...],
        demands: Mapping[Key, Demand],
        supply: Mapping[Pool, Supply],
        before: Mapping[Key, ClassPlan],
        interventions: Interventions,
    ) -> Problem:
        slots_of = _group_slots(supply)
        shape = self._shape(models, demands, supply.keys(), slots_of.keys())
        pools = [supply.get(pool) for pool in shape.pools]
        of_first = next(capacity.work for pool, capacity in supply.items() if pool.model == models[0])
        work_of = {pool.model: capacity.work / of_first for pool, capacity in supply.items()}
        work = np.array([work_of[pool.model] for pool in shape.pools])
        unit_s = {pool.region: capacity.service_s / work_of[pool.model] for pool, capacity in supply.items()}
        slots = np.array([max(slots_of[group], MIN_SLOTS) if group in slots_of else 0.0 for group in shape.groups])
        service_s = np.array([unit_s[group.region] if group in slots_of else 1.0 for group in shape.groups])
        serves = np.array([pool is not None for pool in pools], dtype=np.bool_)
        max_share = np.array([pool.max_share if pool is not None else 1.0 for pool in pools])
        uncapped = np.any(shape.permitted[:, serves & (max_share >= 1.0)], axis=1)
        home, origin = self._home(shape, serves), self._origin(shape)
        demand = np.maximum([class_demand.requests_per_s for class_demand in demands.values()], MIN_DEMAND_PER_S)
        if shape.shares_slots:
            demand = demand * [work_of[key.model] for key in shape.keys]
        yields = yielding(shape, demands.values(), origin, work)
        objective = self.policy.objective
        target = self.policy.spillover.target_utilisation
        reach_s, egress_s = self._reach(shape, work)
        widths, costs = pieces(slots, service_s, target, objective.queueing_weight)
        widths[:, WAITING_PIECES + 1] = np.where(slots > 0.0, yields.per_s, 0.0)
        s_per_cost = objective.latency_ms_per_cost / MS_PER_S
        per_hour = np.array([self._per_hour(group) for group in shape.groups])
        return Problem(
            shape=shape,
            demand=np.where(home >= 0, demand, 0.0),
            work=work,
            slots=slots,
            service_s=service_s,
            serves=serves,
            max_share=max_share,
            capped=uncapped[shape.class_of],
            target_utilisation=target,
            reach_s=reach_s,
            egress_s=egress_s,
            gpu_s=np.where(slots > 0.0, s_per_cost * per_hour * service_s / SECONDS_PER_HOUR, 0.0),
            piece_per_s=widths,
            piece_cost_s=costs,
            yield_rank=yields.rank,
            ranks=yields.ranks,
            home=home,
            origin=origin,
            kept=np.where((origin >= 0) & serves[origin], self._kept(shape, interventions), 0.0),
            held=_held(shape, before),
            change_s=objective.change_penalty_ms / MS_PER_S,
            survive_one_loss=objective.survive_one_loss,
        )

    def _shape(
        self,
        models: tuple[str, ...],
        demands: Mapping[Key, Demand],
        pools_now: Iterable[Pool],
        groups_now: Iterable[Group],
    ) -> Shape:
        last = self._shapes.get(models)
        keys = tuple(demands)
        pools = tuple(sorted({*pools_now, *(last.pools if last is not None else ())}))
        groups = tuple(sorted({*groups_now, *(last.groups if last is not None else ())}))
        members = {TrafficClass(key.model, demand.residency): demand.regions for key, demand in demands.items()}
        classes = tuple(sorted(members))
        permitted = np.array(
            [[pool.model == name.model and pool.region in members[name] for pool in pools] for name in classes],
            dtype=np.bool_,
        )
        place = {name: at for at, name in enumerate(classes)}
        class_of = np.array(
            [place[TrafficClass(key.model, demand.residency)] for key, demand in demands.items()], dtype=np.intp
        )
        if (
            last is not None
            and (last.keys, last.pools, last.groups, last.classes) == (keys, pools, groups, classes)
            and np.array_equal(last.permitted, permitted)
            and np.array_equal(last.class_of, class_of)
        ):
            return last
        # Shapes of earlier combinations of these models are not used again.
        self._shapes = {of: shape for of, shape in self._shapes.items() if of == models or not {*of} & {*models}}
        index = self.distances.index
        regions = tuple(sorted({pool.region for pool in pools}))
        region_at = {name: at for at, name in enumerate(regions)}
        region_of = np.array([region_at[pool.region] for pool in pools], dtype=np.intp)
        group_region = np.array([region_at[group.region] for group in groups], dtype=np.intp)
        pool_place = {pool: at for at, pool in enumerate(pools)}
        draws = [(pool_place[Pool(group.region, name)], at) for at, group in enumerate(groups) for name in group.models]
        draw_pool, draw_group = np.array(draws, dtype=np.intp).reshape(-1, 2).T
        shape = self._shapes[models] = Shape(
            models=models,
            keys=keys,
            pools=pools,
            regions=regions,
            region_of=region_of,
            groups=groups,
            group_region=group_region,
            draw_pool=draw_pool,
            draw_group=draw_group,
            classes=classes,
            permitted=permitted,
            class_of=class_of,
            origin_of=np.array([index[key.origin] for key in keys], dtype=np.intp),
            pool_at=np.array([index[pool.region] for pool in pools], dtype=np.intp),
            confinements=confinements(permitted, region_of, (draw_pool, draw_group), group_region),
        )
        return shape

    def _per_hour(self, group: Group) -> float:
        """The price of a GPU hour of a group; the mean of those of its models."""
        prices = [gpu_price(self.policy, group.region, model, self._priced_at) for model in group.models]
        return sum(prices) / len(prices)

    def _reach(self, shape: Shape, work: Floats) -> tuple[Floats, Floats]:
        """By (origin, pool): the cost (s) of reaching the pool with one unit of work, and the egress part of it."""
        per_gb = np.array([self.policy.regions[name].egress_cost_per_gb for name in self.distances.names])
        cost = np.zeros((len(self.distances.names), len(shape.pools)))
        for name in shape.models:
            of_model = np.array([pool.model == name for pool in shape.pools])
            sizes = self._bytes.get(name) or self.policy.models[name]
            there = per_gb[shape.pool_at[of_model]]
            cost[:, of_model] = egress_cost(sizes, per_gb[:, None], there[None, :])
        cost[shape.pool_at, np.arange(len(shape.pools))] = 0.0
        egress_s = cost * self.policy.objective.latency_ms_per_cost / MS_PER_S / work
        rtt_ms = np.maximum(0.0, self.distances.apart_ms + self._lag_ms)
        rtt_s = rtt_ms[:, shape.pool_at] / MS_PER_S / work
        return rtt_s + egress_s + TIE_S * shape.region_of, egress_s

    def _origin(self, shape: Shape) -> Ints:
        """By key: the pool of its origin; -1 if the origin has no permitted pool."""
        if shape.shares_slots:
            place = {pool: at for at, pool in enumerate(shape.pools)}
            origin = np.array([place.get(Pool(key.origin, key.model), -1) for key in shape.keys], dtype=np.intp)
        else:
            pool_at = np.full(len(self.distances.names), -1, dtype=np.intp)
            pool_at[shape.pool_at] = np.arange(len(shape.pools))
            origin = pool_at[shape.origin_of]
        return np.where((origin >= 0) & shape.permitted[shape.class_of, origin], origin, -1)

    def _home(self, shape: Shape, alive: Flags) -> Ints:
        """By key: the nearest permitted pool that can serve, the first by name among equals; -1 if there is none."""
        usable = (shape.permitted & alive[None, :])[shape.class_of]
        rtt_ms = np.where(usable, self.distances.apart_ms[:, shape.pool_at][shape.origin_of], np.inf)
        return np.where(usable.any(axis=1), rtt_ms.argmin(axis=1), -1)

    def _kept(self, shape: Shape, interventions: Interventions) -> Floats:
        """By key: the share (0-1) of its demand that may not leave its origin while the origin can serve."""
        if not interventions:
            return np.zeros(len(shape.keys))
        away = {
            (origin, model): interventions.of(origin, model).max_away
            for origin, model in {(key.origin, key.model) for key in shape.keys}
        }
        return np.array([1.0 - away[key.origin, key.model] for key in shape.keys])


def _group_slots(supply: Mapping[Pool, Supply]) -> dict[Group, float]:
    """Slots of every capacity group; models that are not planned have no part in the groups."""
    if not any(capacity.shared for capacity in supply.values()):
        return {Group(pool.region, (pool.model,)): capacity.slots for pool, capacity in supply.items()}
    found: dict[Group, float] = {}
    for pool, capacity in supply.items():
        if capacity.own_slots > 0.0 or not capacity.shared:
            own = Group(pool.region, (pool.model,))
            found[own] = found.get(own, 0.0) + capacity.own_slots
        for shared in capacity.shared:
            models = tuple(name for name in shared.models if Pool(pool.region, name) in supply)
            if models[0] == pool.model:
                group = Group(pool.region, models)
                found[group] = found.get(group, 0.0) + shared.slots
    return found


def _held(shape: Shape, before: Mapping[Key, ClassPlan]) -> Held:
    """The shares in force that can stay: those of regions that still have the model."""
    place = {pool: at for at, pool in enumerate(shape.pools)}
    planned = np.zeros(len(shape.keys), dtype=np.bool_)
    keys, pools, shares = [], [], []
    for at, key in enumerate(shape.keys):
        entry = before.get(key)
        if entry is None:
            continue
        planned[at] = True
        for arc in entry.arcs:
            pool = place.get(Pool(arc.server, key.model))
            if pool is not None and arc.share > 0.0:
                keys.append(at)
                pools.append(pool)
                shares.append(arc.share)
    return Held(
        np.array(keys, dtype=np.intp), np.array(pools, dtype=np.intp), np.array(shares, dtype=np.float64), planned
    )
