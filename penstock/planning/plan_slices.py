"""Builds the slices to publish: one bounded step towards the target shares, with reasons and fallbacks.

An entry never names a region that its class does not permit, and an origin without a recent report keeps its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.fleet.snapshot import Snapshot, reporting_regions
from penstock.health.region_health import RegionState
from penstock.overrides.override_effects import emptied
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.share_change_limit import ramped, step_towards
from penstock.planning.share_moves import FleetLimits, Key, ModelsByRegion, Move, NearestFirst, homeward
from penstock.planning.tick_input import TickInput, Workload
from penstock.policy.policy import Policy

MAX_FALLBACKS = 16
"""Maximum number of fallbacks of an entry: an origin probes each of them continuously."""


Detail = Callable[[Key, str, str], str]
"""Returns the detail of an arc, given its key, its home and the region that serves it."""


def no_detail(key: Key, home: str, server: str) -> str:
    """The empty detail, for planners whose arcs need only their `ArcReason`."""
    return ""


def slices(
    tick: TickInput,
    work: Workload,
    targets: Mapping[Key, Mapping[str, float]],
    nearest_first: NearestFirst,
    detail: Detail = no_detail,
) -> dict[str, RegionPlan]:
    """One slice for every region of the policy.

    An origin without a recent report keeps its entries. Classes that have no entry at an origin on its failback ramp
    follow the ramp in its slice.

    Args:
        tick: the planner's input.
        work: the demand and supply of the tick.
        targets: shares by key, within the overrides; a demand without target shares has no entry.
        nearest_first: the regions that a demand permits by distance.
        detail: returns the detail of an arc.
    """
    policy, snapshot, limits = tick.policy, tick.snapshot, work.limits
    alive = _alive(work.supply)
    max_step = policy.spillover.step_per_s * tick.elapsed_s
    reporting = reporting_regions(snapshot, tick.now)
    classes: dict[str, list[ClassPlan]] = {region: [] for region in policy.regions}
    for region in policy.regions.keys() - reporting:
        classes[region] = [
            emptied(entry, limits.of(region, entry.model), alive.get(entry.model, ()), max_step)
            for entry in _still_valid(tick.previous.get(region), policy)
        ]
    granted = {region: _granted(policy, snapshot, region, tick.now) for region in policy.regions}
    ramps = {region: part for region, part in granted.items() if snapshot.state(region) is RegionState.RECOVERING}
    before, digest = work.in_force, policy.digest()
    if any(plan.policy_digest != digest for plan in tick.previous.values()):
        before = {key: _without_unknown_regions(entry, policy) for key, entry in before.items()}
    fleet_limits = FleetLimits(alive, nearest_first, ModelsByRegion.of(snapshot), limits)
    moves = [
        Move.of(key, demand, target, before.get(key), fleet_limits)
        for key, demand in work.demands.items()
        if (target := targets.get(key))
    ]
    step = _Step(snapshot, ramps, max_step, homeward(moves, work.demands, targets, max_step), detail)
    for move in moves:
        classes[move.key.origin].append(step.entry(move))
    return {
        region: RegionPlan(
            region,
            tick.generation,
            tick.epoch,
            digest,
            tick.now,
            tuple(entries),
            granted[region],
            closed=limits.closed_to(region, policy.models),
            drained_endpoints=limits.drained_endpoints(region),
        )
        for region, entries in classes.items()
    }


def _alive(supply: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """By model, the regions that can serve it."""
    alive: dict[str, set[str]] = {}
    for region, model in supply:
        alive.setdefault(model, set()).add(region)
    return alive


class _Step(NamedTuple):
    """One step of every class of a plan towards its target."""

    snapshot: Snapshot
    ramps: Mapping[str, float]
    """By region on its failback ramp: the maximum share of a class."""
    max_step: float
    homeward: Mapping[tuple[str, str], float]
    detail: Detail

    def entry(self, move: Move) -> ClassPlan:
        """The entry of a class after the step: the same object as before if nothing changes."""
        demand, constraints, home = move.demand, move.constraints, move.home
        open_regions = [name for name in move.nearest if name in move.serving and name not in constraints.closed]
        shares = self._shares(move, open_regions)
        away = _why_away(self.snapshot.state(home), home in open_regions, home in constraints.returning)
        because = constraints.because.get(home, "")
        arcs = []
        for name in sorted(shares, key=move.nearest.index) if len(shares) > 1 else shares:
            why = ArcReason.HOME if name == home else away
            detail = because if why is not ArcReason.HOME else ""
            if why is ArcReason.SPILLOVER and not because:
                detail = self.detail(move.key, home, name)
            arcs.append(Arc(name, shares[name], why, detail))
        fallbacks = tuple(islice((name for name in open_regions if name not in shares), MAX_FALLBACKS))
        before = move.entry
        tables = tuple([table for table in before.failover_tables if table.lost in shares]) if before else ()
        after = ClassPlan(demand.model, demand.residency, tuple(arcs), fallbacks, tables)
        return before if before == after and before is not None else after

    def _shares(self, move: Move, open_regions: Sequence[str]) -> Mapping[str, float]:
        shares = move.current or move.target
        if move.distance > 0.0:
            step = self.max_step
            if move.comes_home:
                step = move.distance * self.homeward[move.demand.origin, move.demand.model]
            shares = step_towards(move.current, move.target, step, move.serving)
        if self.ramps:
            shares = ramped(shares, _not_reduced(self.ramps, move.current, move.constraints.returning), open_regions)
        return shares


def _not_reduced(
    ramps: Mapping[str, float], current: Mapping[str, float], returning: frozenset[str]
) -> Mapping[str, float]:
    """The ramps, raised to the share in force for regions whose drain ended before they were empty."""
    if not returning:
        return ramps
    return {
        region: max(part, current.get(region, 0.0)) if region in returning else part for region, part in ramps.items()
    }


def _granted(policy: Policy, snapshot: Snapshot, region: str, now: float) -> float:
    """The part (0-1) of its demand that a region may serve, by its health; 1 if its health is unknown."""
    health = snapshot.health.get(region)
    if health is None or health.state is RegionState.UNKNOWN:
        return 1.0
    return health.weight(now, policy.failover)


def _without_unknown_regions(entry: ClassPlan, policy: Policy) -> ClassPlan:
    """The entry without failover tables that name a region which the policy no longer has."""
    known = tuple([table for table in entry.failover_tables if all(arc.server in policy.regions for arc in table.arcs)])
    return entry if len(known) == len(entry.failover_tables) else msgspec.structs.replace(entry, failover_tables=known)


def _still_valid(before: RegionPlan | None, policy: Policy) -> list[ClassPlan]:
    """The entries of a slice whose model and regions the policy still has."""
    return [
        msgspec.structs.replace(
            _without_unknown_regions(entry, policy),
            fallbacks=tuple(name for name in entry.fallbacks if name in policy.regions),
        )
        for entry in (before.classes if before is not None else ())
        if entry.model in policy.models and all(arc.server in policy.regions for arc in entry.arcs)
    ]


def _why_away(home: RegionState, home_serves: bool, returning: bool) -> ArcReason:
    if home is RegionState.RECOVERING or (returning and home_serves):
        return ArcReason.FAILBACK
    return ArcReason.SPILLOVER if home_serves else ArcReason.FAILOVER
