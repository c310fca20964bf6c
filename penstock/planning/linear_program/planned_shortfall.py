"""Missing capacity by region, computed from a planner's flows."""

from __future__ import annotations

import numpy as np

from penstock.fleet.capacity import Shortfall
from penstock.planning.linear_program.arrays import Flags, Floats
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.n_minus_one import excesses
from penstock.planning.linear_program.problem import Problem

NOTICEABLE_SLOTS = 0.01
"""A shortfall below this is rounding."""


def shortfalls(flows: Flows) -> list[Shortfall]:
    """Shortfalls of one model, the largest first: now, then at each region's loss if the policy requires reserve."""
    problem, load, groups = flows.problem, flows.load_per_s(), flows.by_group()
    found = _past_target(problem, groups, load)
    if problem.survive_one_loss:
        found += _at_losses(problem, groups, load)
    return sorted(
        (shortfall for shortfall in found if shortfall.slots > NOTICEABLE_SLOTS),
        key=lambda shortfall: (shortfall.lost or "", -shortfall.slots, shortfall.regions),
    )


def _past_target(problem: Problem, groups: Floats, load: Floats) -> list[Shortfall]:
    """Each pool that the flows fill past its target."""
    over = load - problem.target_utilisation * problem.capacity_per_s
    found = []
    for at in np.flatnonzero(over * problem.service_s > NOTICEABLE_SLOTS).tolist():
        pool = np.arange(len(over)) == at
        found.append(_shortfall(problem, groups[:, at] > 0.0, pool, float(over[at]), None))
    return found


def _at_losses(problem: Problem, groups: Floats, load: Floats) -> list[Shortfall]:
    """By lost pool, the confinement with the largest excess."""
    sets = problem.shape.confinements
    excess = excesses(sets, groups, load, problem.capacity_per_s)
    found = []
    for lost in np.flatnonzero(excess.max(axis=0, initial=-np.inf) > 0.0).tolist():
        worst = int(excess[:, lost].argmax())
        elsewhere = sets.pools[worst].copy()
        elsewhere[lost] = False
        affected = sets.inside[worst] & (groups[:, lost] > 0.0)
        found.append(_shortfall(problem, affected, elsewhere, float(excess[worst, lost]), lost))
    return found


def _shortfall(problem: Problem, groups: Flags, pools: Flags, requests_per_s: float, lost: int | None) -> Shortfall:
    shape = problem.shape
    weights = problem.slots * pools
    if not weights.any():
        weights = np.arange(len(weights)) == lost
    mean_s = float(weights @ problem.service_s / weights.sum())
    return Shortfall(
        shape.model,
        tuple(name for name, affected in zip(shape.groups, groups.tolist(), strict=True) if affected),
        tuple(name for name, helps in zip(shape.pools, pools.tolist(), strict=True) if helps),
        None if lost is None else shape.pools[lost],
        requests_per_s,
        requests_per_s * mean_s,
    )
