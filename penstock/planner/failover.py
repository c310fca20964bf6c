"""Where demand goes the moment a region is lost, worked out beforehand, so that nobody has to ask anybody then.

Every origin's table for one loss is made together with all others': those with the fewest other regions choose first,
so that together they fit into the room that the plan kept. Where residency classes are nested or disjoint this finds a
place for all that has one; where they overlap otherwise it may send some to a region that is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from penstock.plan import Arc, ArcReason, ClassPlan, Detour, RegionPlan
from penstock.planner.cost import flows
from penstock.planner.problem import Problem, summed
from penstock.planner.queueing import Floats
from penstock.slices import Key
from penstock.steps import without_crumbs

KEPT_S = 10.0
"""Tables are made anew this often (s)."""

SOON_S = 2.0
"""And this soon (s) when some region has begun to serve a class that has no table for its loss."""

MOST_ARCS = 4
"""A lost share goes to this many regions at most."""

PARTS = 20
"""Shares of a table that plans carry are multiples of one part in this many."""


def detours(problems: Iterable[Problem], plans: Mapping[str, RegionPlan]) -> dict[Key, tuple[Detour, ...]]:
    """For each key, a detour for every region that serves a share of it; none where no other region may and can.

    Args:
        problems: what was planned for.
        plans: the slices that come into force.
    """
    shares = {
        Key(origin, one.model, one.residency): {arc.server: arc.share for arc in one.arcs}
        for origin, plan in plans.items()
        for one in plan.classes
    }
    found: dict[Key, tuple[Detour, ...]] = {}
    for problem in problems:
        for key, detour in _model(problem, shares):
            found[key] = (*found.get(key, ()), detour)
    return found


def _model(problem: Problem, shares: Mapping[Key, Mapping[str, float]]) -> Iterable[tuple[Key, Detour]]:
    shape = problem.shape
    keys, pools, amounts = flows(problem, shares)
    load = summed(pools, amounts, len(shape.pools))
    spare = np.maximum(0.0, problem.capacity_per_s - load)
    choices = shape.permitted.sum(axis=1)[shape.group_of[keys]]
    order = np.lexsort((keys, choices, pools))
    nearest = _Nearest(problem)
    free: Floats = spare
    before = -1
    for key, lost, amount in zip(keys[order].tolist(), pools[order].tolist(), amounts[order].tolist(), strict=True):
        if lost != before:
            free, before = spare.copy(), lost
        taken: dict[str, float] = {}
        others = [pool for pool in nearest.of(key) if pool != lost]
        for pool in others:
            take = min(amount, float(free[pool]))
            if take > 0.0:
                free[pool] -= take
                amount -= take
                taken[shape.pools[pool]] = take
            if amount <= 0.0:
                break
        if others and amount > 0.0:
            first = shape.pools[others[0]]
            taken[first] = taken.get(first, 0.0) + amount
        if taken:
            arcs = tuple(Arc(name, share, ArcReason.FAILOVER) for name, share in without_crumbs(taken).items())
            yield shape.keys[key], Detour(shape.pools[lost], arcs)


def _rounded(way: Detour) -> Detour:
    """The largest parts as round shares, in the order given: noise should not make a new plan of them."""
    share = {arc.server: arc.share for arc in way.arcs}
    largest = sorted(share, key=lambda name: (-share[name], name))[:MOST_ARCS]
    whole = sum(share[name] for name in largest)
    parts = {name: round(share[name] / whole * PARTS) for name in largest}
    parts[largest[0]] += PARTS - sum(parts.values())
    arcs = [msgspec.structs.replace(arc, share=part / PARTS) for arc in way.arcs if (part := parts.get(arc.server, 0))]
    return Detour(way.lost, tuple(arcs))


class Tables:
    """Keeps what plans carry of failover tables for a while, so that noise does not make a new plan every tick."""

    def __init__(self) -> None:
        self._made_at = float("-inf")
        self._lacking = False

    def carried(
        self,
        plans: Mapping[str, RegionPlan],
        before: Mapping[Key, ClassPlan],
        problems: Iterable[Problem],
        now: float,
    ) -> dict[str, RegionPlan]:
        """The slices with tables: those in force, until it is time for new ones.

        Args:
            before: the entries in force.
            now: the planner's clock, in seconds.
        """
        made = None
        if now - self._made_at >= (SOON_S if self._lacking else KEPT_S):
            made, self._made_at = detours(problems, plans), now
        self._lacking = False
        return {
            origin: msgspec.structs.replace(
                plan,
                classes=tuple(
                    [self._with(one, Key(origin, one.model, one.residency), before, made) for one in plan.classes]
                ),
            )
            for origin, plan in plans.items()
        }

    def _with(
        self,
        one: ClassPlan,
        key: Key,
        before: Mapping[Key, ClassPlan],
        made: Mapping[Key, tuple[Detour, ...]] | None,
    ) -> ClassPlan:
        standing = before.get(key)
        if made is not None:
            tables = tuple([_rounded(way) for way in made.get(key, ())])
        else:
            servers = {arc.server for arc in one.arcs}
            known = standing.detours if standing is not None else one.detours
            tables = tuple([way for way in known if way.lost in servers])
            self._lacking |= len(tables) < len(servers)
        if (
            standing is not None
            and standing.detours == tables
            and (standing.arcs, standing.fallbacks) == (one.arcs, one.fallbacks)
        ):
            return standing
        return one if one.detours == tables else msgspec.structs.replace(one, detours=tables)


class _Nearest:
    """A key's permitted pools that are alive, the cheapest to reach first."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[tuple[int, int], list[int]] = {}

    def of(self, key: int) -> list[int]:
        shape = self._problem.shape
        origin, group = int(shape.origin_of[key]), int(shape.group_of[key])
        found = self._known.get((origin, group))
        if found is None:
            pools = np.flatnonzero(shape.permitted[group] & (self._problem.slots > 0.0))
            found = pools[np.argsort(self._problem.reach_s[origin, pools], kind="stable")].tolist()
            self._known[origin, group] = found
        return found
