"""From the shares that a planner wants to the slices that are published: one step closer, with reasons and fallbacks.

Whatever decides the shares, this is how they come into force: by bounded steps from what is in force, never where they
may not be, and with what an origin had where it is not heard from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.fleet.snapshot import Snapshot, reporting_regions
from penstock.health.region_health import RegionState
from penstock.overrides.interventions import emptied
from penstock.planning.change_limit import ramped, step_towards
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.share_moves import Key, Move, NearestFirst, Words, homeward
from penstock.planning.tick_input import TickInput, Workload
from penstock.policy.policy import Policy

MAX_FALLBACKS = 16
"""An origin is told of this many regions besides its arcs: it probes each of them all the time."""


Detail = Callable[[Key, str, str], str]
"""What to say of an arc besides its reason: of whom, from which home, to which server."""


def no_detail(key: Key, home: str, server: str) -> str:
    """For planners whose arcs all have the one reason that `ArcReason` names."""
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
    follow the ramp that its slice carries.

    Args:
        tick: the planner's input.
        work: its demand and supply.
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
    words = Words.of(snapshot)
    granted = {region: _granted(policy, snapshot, region, tick.now) for region in policy.regions}
    ramps = {region: part for region, part in granted.items() if snapshot.state(region) is RegionState.RECOVERING}
    before, digest = work.in_force, policy.digest()
    if any(plan.policy_digest != digest for plan in tick.previous.values()):
        before = {key: _without_unknown_regions(entry, policy) for key, entry in before.items()}
    moves = [
        Move.of(key, demand, target, before.get(key), alive[demand.model], nearest_first, words, limits)
        for key, demand in work.demands.items()
        if (target := targets.get(key))
    ]
    step = _Step(snapshot, ramps, max_step, homeward(moves, work.demands, targets, max_step), detail)
    for move in moves:
        classes[move.key.origin].append(step.taken(move))
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
        )
        for region, entries in classes.items()
    }


def _alive(supply: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """By model, the regions that can take traffic for it."""
    alive: dict[str, set[str]] = {}
    for region, model in supply:
        alive.setdefault(model, set()).add(region)
    return alive


class _Step(NamedTuple):
    """What moves every class of one plan a step further."""

    snapshot: Snapshot
    ramps: Mapping[str, float]
    largest: float
    homeward: Mapping[tuple[str, str], float]
    detail: Detail

    def taken(self, move: Move) -> ClassPlan:
        """A class's entry after it; the one in force where nothing changes."""
        key, one, entry, orders, serving, nearest, home, standing, target, distance = move
        closed = orders.closed
        if distance <= 0.0:
            shares: Mapping[str, float] = standing or target
        else:
            far = distance * self.homeward[one.origin, one.model] if move.comes_home else self.largest
            shares = step_towards(standing, target, far, serving)
        if self.ramps:
            heirs = (name for name in nearest if name in serving and name not in closed)
            shares = ramped(shares, _not_torn(self.ramps, standing, orders.returning), heirs)
        away = _why_away(self.snapshot.state(home), home in serving and home not in closed, home in orders.returning)
        ordered = orders.because.get(home, "")
        arcs = tuple(
            [
                Arc(name, shares[name], ArcReason.HOME)
                if name == home
                else Arc(
                    name,
                    shares[name],
                    away,
                    ordered or (self.detail(key, home, name) if away is ArcReason.SPILLOVER else ""),
                )
                for name in (sorted(shares, key=nearest.index) if len(shares) > 1 else shares)
            ]
        )
        others = (name for name in nearest if name not in shares and name in serving and name not in closed)
        spare = islice(others, MAX_FALLBACKS)
        detours = tuple([way for way in entry.detours if way.lost in shares]) if entry is not None else ()
        now = ClassPlan(one.model, one.residency, arcs, tuple(spare), detours)
        return entry if entry == now and entry is not None else now


def _not_torn(
    ramps: Mapping[str, float], standing: Mapping[str, float], returning: frozenset[str]
) -> Mapping[str, float]:
    """Ramps that take nothing at once from a region whose drain ended half way: it never was away."""
    if not returning:
        return ramps
    return {
        region: max(part, standing.get(region, 0.0)) if region in returning else part for region, part in ramps.items()
    }


def _granted(policy: Policy, snapshot: Snapshot, region: str, now: float) -> float:
    """How much (0-1) of what is asked of a region it may serve, by its health; all of it where nothing is known."""
    health = snapshot.health.get(region)
    if health is None or health.state is RegionState.UNKNOWN:
        return 1.0
    return health.weight(now, policy.failover)


def _without_unknown_regions(entry: ClassPlan, policy: Policy) -> ClassPlan:
    """An entry with the failover tables that name no region which the policy has no more."""
    known = tuple([way for way in entry.detours if all(arc.server in policy.regions for arc in way.arcs)])
    return entry if len(known) == len(entry.detours) else msgspec.structs.replace(entry, detours=known)


def _still_valid(before: RegionPlan | None, policy: Policy) -> list[ClassPlan]:
    """A slice's classes whose model and servers the policy still has; what a class permits lies in its name."""
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
