"""Missing capacity by region, computed from a planner's flows."""

from __future__ import annotations

import numpy as np

from penstock.fleet.capacity import Shortfall
from penstock.planning.linear_program.arrays import Flags, Floats
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.n_minus_one import excesses
from penstock.planning.linear_program.problem import Problem

NOTICEABLE_SLOTS = 0.01
"""Minimum shortfall (slots) that is reported; smaller ones are rounding errors."""


def shortfalls(flows: Flows) -> list[Shortfall]:
    """Shortfalls of one problem: those of now, then, if the policy requires a reserve, those at each region's loss.
    Of each kind, the largest come first.

    A shortfall of models that share slots is divided among these models by their work, so that the sum over models is
    the total.
    """
    problem, by_class = flows.problem, flows.by_class()
    found = _past_target(flows, by_class)
    if problem.survive_one_loss:
        found += _at_losses(problem, by_class, flows.load_per_s)
    return sorted(
        (shortfall for shortfall in found if shortfall.slots > NOTICEABLE_SLOTS),
        key=lambda shortfall: (shortfall.lost or "", -shortfall.slots, shortfall.regions),
    )


def _past_target(flows: Flows, by_class: Floats) -> list[Shortfall]:
    """Each pool in a capacity group that the flows fill past its target, with its part of the group's shortfall."""
    problem, shape = flows.problem, flows.problem.shape
    over = flows.load_per_s - problem.target_utilisation * problem.capacity_per_s
    over[over * problem.service_s <= NOTICEABLE_SLOTS] = 0.0
    load = flows.pool_load_per_s()
    lacking = np.zeros(len(shape.pools))
    for group in np.flatnonzero(over > 0.0).tolist():
        pools = shape.draw_pool[shape.draw_group == group]
        lacking[pools] += over[group] * load[pools] / load[pools].sum()
    found = []
    for pool in np.flatnonzero(lacking > 0.0).tolist():
        groups = np.zeros(len(shape.groups), np.bool_)
        groups[shape.draw_group[shape.draw_pool == pool]] = True
        found += _shortfalls(problem, by_class[:, pool], groups, float(lacking[pool]), None)
    return found


def _at_losses(problem: Problem, by_class: Floats, load: Floats) -> list[Shortfall]:
    """By lost region, the confinement with the largest excess."""
    sets, shape = problem.shape.confinements, problem.shape
    excess = excesses(sets, by_class, load, problem.capacity_per_s)
    displaced = by_class @ sets.pools_in
    found = []
    for lost in np.flatnonzero(excess.max(axis=0, initial=-np.inf) > 0.0).tolist():
        worst = int(excess[:, lost].argmax())
        elsewhere = sets.groups[worst] & (shape.group_region != lost)
        affected = np.where(sets.inside[worst], displaced[:, lost], 0.0)
        found += _shortfalls(problem, affected, elsewhere, float(excess[worst, lost]), lost)
    return found


def _shortfalls(
    problem: Problem, affected: Floats, groups: Flags, units_per_s: float, lost: int | None
) -> list[Shortfall]:
    """The parts of a shortfall, by model.

    Args:
        problem: the problem.
        affected: by class, its flow (units/s) that the missing capacity affects.
        groups: by capacity group, whether more capacity there would help.
        units_per_s: the shortfall (units/s).
        lost: the lost region, if any.
    """
    shape = problem.shape
    weights = problem.slots * groups
    if not weights.any():
        weights = (shape.group_region == lost).astype(np.float64)
    mean_s = float(weights @ problem.service_s / weights.sum())
    regions = np.unique(shape.group_region[groups]).tolist()
    of_model = {name: np.array([part.model == name for part in shape.classes]) for name in shape.models}
    total = float(affected.sum())
    found = []
    for at, (name, own) in enumerate(of_model.items()):
        part = float(affected[own].sum()) / total if total > 0.0 else float(at == 0)
        if part > 0.0:
            request = problem.work[[pool.model for pool in shape.pools].index(name)]
            found.append(
                Shortfall(
                    name,
                    tuple(
                        kind.residency
                        for kind, is_own, flow in zip(shape.classes, own.tolist(), affected.tolist(), strict=True)
                        if is_own and flow > 0.0
                    ),
                    tuple(shape.regions[region] for region in regions),
                    None if lost is None else shape.regions[lost],
                    part * units_per_s / float(request),
                    part * units_per_s * mean_s,
                )
            )
    return found
