"""What capacity is missing where, as the planner finds it in its own answer."""

from __future__ import annotations

import numpy as np

from penstock.fleet.capacity import Shortfall
from penstock.planning.linear_program.n_minus_one import Confinements, by_group, excesses
from penstock.planning.linear_program.problem import Flags, Ints, Problem, summed
from penstock.planning.linear_program.waiting_cost import Floats

NOTICEABLE_SLOTS = 0.01
"""Less than this is rounding."""


def shortfalls(
    problem: Problem, sets: Confinements, key: Ints, pool: Ints, flow: Floats, *, at_a_loss: bool
) -> list[Shortfall]:
    """What one model lacks under flows by (key, pool), worst first: now, then at the loss of each region.

    Args:
        at_a_loss: whether reserve for the loss of a region is asked for at all.
    """
    load = summed(pool, flow, len(problem.shape.pools))
    groups = by_group(problem, key, pool, flow)
    found = _now(problem, groups, load)
    if at_a_loss:
        excess = excesses(sets, groups, load, problem.capacity_per_s)
        for lost in np.flatnonzero(excess.max(axis=0, initial=-np.inf) > 0.0).tolist():
            at = int(excess[:, lost].argmax())
            elsewhere = sets.pools[at].copy()
            elsewhere[lost] = False
            felt = sets.inside[at] & (groups[:, lost] > 0.0)
            found.append(_shortfall(problem, felt, elsewhere, float(excess[at, lost]), lost))
    return sorted(
        (one for one in found if one.slots > NOTICEABLE_SLOTS),
        key=lambda one: (one.lost or "", -one.slots, one.regions),
    )


def _now(problem: Problem, groups: Floats, load: Floats) -> list[Shortfall]:
    """Pools that the plan fills past their target, together where the same classes fill them."""
    over = load - problem.target_utilisation * problem.capacity_per_s
    full = over * problem.service_s > NOTICEABLE_SLOTS
    found = []
    for at in np.flatnonzero(full).tolist():
        only = np.zeros(len(full), np.bool_)
        only[at] = True
        found.append(_shortfall(problem, groups[:, at] > 0.0, only, float(over[at]), None))
    return found


def _shortfall(problem: Problem, felt: Flags, where: Flags, requests_per_s: float, lost: int | None) -> Shortfall:
    shape = problem.shape
    weights = problem.slots * where
    if not weights.any():
        weights = np.arange(len(weights)) == lost
    mean_s = float(weights @ problem.service_s / weights.sum())
    return Shortfall(
        shape.model,
        tuple(name for name, one in zip(shape.groups, felt.tolist(), strict=True) if one),
        tuple(name for name, one in zip(shape.pools, where.tolist(), strict=True) if one),
        None if lost is None else shape.pools[lost],
        requests_per_s,
        requests_per_s * mean_s,
    )
