"""Failover tables: the regions that take over a lost region's share, for each origin, computed before the loss.

The tables of all origins for one loss are computed together. Demand with the fewest other regions is placed first, so
that all tables together fit into the capacity that the plan reserved. With nested or disjoint residency classes all
demand that fits is placed; with other overlaps a table may send some demand to a full region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np

from penstock.planning.linear_program.arrays import Ints
from penstock.planning.linear_program.flows import Flows, slot_placement
from penstock.planning.linear_program.problem import Problem
from penstock.planning.plan import Arc, ArcReason, ClassPlan, FailoverTable, RegionPlan
from penstock.planning.share_change_limit import normalised
from penstock.planning.share_moves import Key

INTERVAL_S = 10.0
"""Time (s) between two computations of the tables."""

MISSING_INTERVAL_S = 2.0
"""Time (s) between two computations if a region serves a class that has no table for its loss."""

MAX_ARCS = 4
"""Maximum number of regions that take over a lost share."""

NEAR = 32
"""Number of cheapest regions that are tried first; they nearly always suffice."""

PARTS = 20
"""Shares in published tables are multiples of one part in this many."""


def compute_tables(
    problems: Iterable[Problem], plans: Mapping[str, RegionPlan]
) -> dict[Key, tuple[FailoverTable, ...]]:
    """Returns, by key, a table for every region that serves a share of it, unless no other permitted region can serve.

    Args:
        problems: the problems of all models.
        plans: the slices to be published.
    """
    shares = {
        Key(origin, entry.model, entry.residency): {arc.server: arc.share for arc in entry.arcs}
        for origin, plan in plans.items()
        for entry in plan.classes
    }
    found: dict[Key, tuple[FailoverTable, ...]] = {}
    for problem in problems:
        for key, table in _tables(problem, shares):
            found[key] = (*found.get(key, ()), table)
    return found


def _tables(problem: Problem, shares: Mapping[Key, Mapping[str, float]]) -> Iterable[tuple[Key, FailoverTable]]:
    shape = problem.shape
    flows = Flows.of_shares(problem, shares)
    keys, pools, amounts = flows.key, flows.pool, flows.per_s
    spare = slot_placement(problem, problem.capacity_per_s)
    for at, load in enumerate(flows.pool_load_per_s().tolist()):
        spare.place(at, load)
    choices = shape.permitted.sum(axis=1)[shape.class_of[keys]]
    order = np.lexsort((keys, choices, shape.region_of[pools]))
    nearest = _Nearest(problem)
    ordered = keys[order].tolist(), pools[order].tolist(), amounts[order].tolist()
    region_of = shape.region_of.tolist()
    free, before = spare, -1
    for key, lost_pool, amount in zip(*ordered, strict=True):
        lost = region_of[lost_pool]
        if lost != before:
            free, before = spare.copy(), lost
        taken: dict[str, float] = {}
        first = ""
        for pool in nearest.of(key):
            region = shape.pools[pool].region
            if pool == lost_pool:
                continue
            first = first or region
            take = free.place(pool, amount)
            if take > 0.0:
                amount -= take
                taken[region] = take
            if amount <= 0.0:
                break
        if first and amount > 0.0:
            taken[first] = taken.get(first, 0.0) + amount
        if taken:
            arcs = tuple(Arc(name, share, ArcReason.FAILOVER) for name, share in normalised(taken).items())
            yield shape.keys[key], FailoverTable(shape.regions[lost], arcs)


def _rounded(table: FailoverTable) -> FailoverTable:
    """The table with its largest shares only, rounded, so that noise does not change the published plan."""
    if len(table.arcs) == 1:
        return table
    share = {arc.server: arc.share for arc in table.arcs}
    largest = sorted(share, key=lambda name: (-share[name], name))[:MAX_ARCS]
    whole = sum(share[name] for name in largest)
    parts = {name: round(share[name] / whole * PARTS) for name in largest}
    parts[largest[0]] += PARTS - sum(parts.values())
    arcs = [
        msgspec.structs.replace(arc, share=part / PARTS) for arc in table.arcs if (part := parts.get(arc.server, 0))
    ]
    return FailoverTable(table.lost, tuple(arcs))


class FailoverTableSchedule:
    """Adds failover tables to plans; recomputes them only at intervals, so that noise does not change every plan."""

    def __init__(self) -> None:
        self._computed_at = float("-inf")
        self._missing = False
        """Whether a region serves a class of the last plan that has no table for its loss."""

    def with_tables(
        self, plans: Mapping[str, RegionPlan], problems: Iterable[Problem], now: float
    ) -> dict[str, RegionPlan]:
        """The slices with tables: new ones if they are due, else those of the plan in force.

        Args:
            plans: slices whose entries have the tables in force.
            problems: the problems of all models.
            now: the planner's clock, in seconds.
        """
        computed = None
        if now - self._computed_at >= (MISSING_INTERVAL_S if self._missing else INTERVAL_S):
            computed, self._computed_at = compute_tables(problems, plans), now
        self._missing = False
        return {origin: self._slice(plan, computed) for origin, plan in plans.items()}

    def _slice(self, plan: RegionPlan, computed: Mapping[Key, tuple[FailoverTable, ...]] | None) -> RegionPlan:
        if computed is None:
            classes = [self._kept(entry) for entry in plan.classes]
        else:
            classes = [
                _with_tables(entry, computed.get(Key(plan.region, entry.model, entry.residency), ()))
                for entry in plan.classes
            ]
        return msgspec.structs.replace(plan, classes=tuple(classes))

    def _kept(self, entry: ClassPlan) -> ClassPlan:
        """The entry with only the tables for regions of its arcs."""
        arcs, tables = entry.arcs, entry.failover_tables
        if len(arcs) == 1 == len(tables) and tables[0].lost == arcs[0].server:
            return entry
        servers = {arc.server for arc in arcs}
        kept = tuple([table for table in tables if table.lost in servers])
        self._missing |= len(kept) < len(servers)
        return entry if len(kept) == len(tables) else msgspec.structs.replace(entry, failover_tables=kept)


def _with_tables(entry: ClassPlan, computed: Iterable[FailoverTable]) -> ClassPlan:
    tables = tuple([_rounded(table) for table in computed])
    return entry if entry.failover_tables == tables else msgspec.structs.replace(entry, failover_tables=tables)


class _Nearest:
    """The permitted pools of a key that can serve, the cheapest to reach first."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[int, tuple[Ints, list[list[int]]]] = {}
        """By class: all of its pools that can serve, and by origin the NEAR cheapest of them."""

    def of(self, key: int) -> Iterator[int]:
        reach_s = self._problem.reach_s
        of_class, origin = int(self._problem.shape.class_of[key]), int(self._problem.shape.origin_of[key])
        if of_class not in self._known:
            pools = np.flatnonzero(self._problem.shape.permitted[of_class] & self._problem.serves)
            near = np.broadcast_to(pools, (len(reach_s), len(pools)))
            if len(pools) > NEAR:
                near = np.sort(pools[np.argpartition(reach_s[:, pools], NEAR, axis=1)[:, :NEAR]], axis=1)
            order = np.argsort(np.take_along_axis(reach_s, near, axis=1), axis=1, kind="stable")
            self._known[of_class] = pools, np.take_along_axis(near, order, axis=1).tolist()
        pools, first = self._known[of_class]
        yield from first[origin]
        if len(pools) > NEAR:
            yield from pools[np.argsort(reach_s[origin, pools], kind="stable")][NEAR:].tolist()
