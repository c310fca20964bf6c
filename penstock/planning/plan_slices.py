"""From the shares that a planner wants to the slices that are published: one step closer, with reasons and fallbacks.

Whatever decides the shares, this is how they come into force: by bounded steps from what is in force, never where they
may not be, and with what an origin had where it is not heard from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.fleet.capacity import Supply
from penstock.fleet.snapshot import Demand, Snapshot, reporting_regions
from penstock.health.region_health import RegionState
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions, emptied
from penstock.planning.change_limit import ramped, step_towards
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.share_moves import Key, Move, NearestFirst, Words, homeward
from penstock.planning.unchanged_cache import Resting
from penstock.policy.policy import Policy

MAX_FALLBACKS = 16
"""An origin is told of this many regions besides its arcs: it probes each of them all the time."""


class Edition(NamedTuple):
    """What every slice of one plan carries, and how far it may be from the plan before it."""

    generation: int
    epoch: int
    policy_digest: str
    now: float
    """The planner's clock, in seconds."""
    elapsed_s: float
    """Time (s) since the plan in force was made."""


Detail = Callable[[Key, str, str], str]
"""What to say of an arc besides its reason: of whom, from which home, to which server."""


def no_detail(key: Key, home: str, server: str) -> str:
    """For planners whose arcs all have the one reason that `ArcReason` names."""
    return ""


def planned_for(policy: Policy, demands: list[Demand]) -> dict[Key, Demand]:
    """The part of demand that the policy knows: its origins, its models, and of each class the regions it has."""
    known = frozenset(policy.regions)
    whole = {one.residency: one.regions for one in demands}
    parts = {name: regions if regions <= known else regions & known for name, regions in whole.items()}
    return {
        Key(one.origin, one.model, one.residency): one
        if parts[one.residency] is one.regions
        else msgspec.structs.replace(one, regions=parts[one.residency])
        for one in demands
        if one.model in policy.models and one.origin in known and parts[one.residency]
    }


def in_force(previous: Mapping[str, RegionPlan], demands: Mapping[Key, Demand]) -> dict[Key, ClassPlan]:
    """The entries to move from: none where the plan has no such class, or sends it where it may not be."""
    found = {}
    for origin, plan in previous.items():
        for entry in plan.classes:
            key = Key(origin, entry.model, entry.residency)
            one = demands.get(key)
            if one is not None and one.regions.issuperset([arc.server for arc in entry.arcs]):
                found[key] = entry
    return found


def slices(
    policy: Policy,
    snapshot: Snapshot,
    previous: Mapping[str, RegionPlan],
    before: Mapping[Key, ClassPlan],
    demands: Mapping[Key, Demand],
    targets: Mapping[Key, Mapping[str, float]],
    supply: Mapping[tuple[str, str], Supply],
    edition: Edition,
    *,
    nearest_first: NearestFirst,
    detail: Detail = no_detail,
    interventions: Interventions = NO_INTERVENTIONS,
    resting: Resting | None = None,
) -> dict[str, RegionPlan]:
    """One slice for every region of the policy.

    An origin that is not heard from keeps what it had: silence is no news of its demand. What one that is on its way
    back is asked for in other classes follows the ramp that its slice carries.

    Args:
        previous: the slices in force.
        before: their entries, from which shares move at a bounded rate: what `in_force` found.
        demands: what is planned for, with all the regions that each permits, closed ones included.
        targets: the shares wanted, by key; a demand without any has no entry, since nobody can serve it.
        supply: who can take traffic.
        interventions: what operators want; `targets` are within it already.
        resting: what was learned in earlier ticks of the same planner.
    """
    alive = _alive(supply)
    max_step = policy.spillover.step_per_s * edition.elapsed_s
    spoke = reporting_regions(snapshot, edition.now)
    classes: dict[str, list[ClassPlan]] = {region: [] for region in policy.regions}
    for region in policy.regions.keys() - spoke:
        classes[region] = [
            emptied(one, interventions.of(region, one.model), alive.get(one.model, ()), max_step)
            for one in _still_standing(previous.get(region), policy)
        ]
    words = Words.of(snapshot)
    granted = {region: _granted(policy, snapshot, region, edition.now) for region in policy.regions}
    ramps = {region: part for region, part in granted.items() if snapshot.state(region) is RegionState.RECOVERING}
    if any(plan.policy_digest != edition.policy_digest for plan in previous.values()):
        before = {key: _known_tables(entry, policy) for key, entry in before.items()}
    resting = resting or Resting()
    resting.begin(None if ramps or interventions.overrides else (edition.policy_digest, alive, words))
    found: list[tuple[str, Move | ClassPlan]] = []
    for key, one in demands.items():
        if target := targets.get(key):
            entry = before.get(key)
            if entry is not None and _rests(key, entry, target, resting, detail):
                found.append((key.origin, entry))
                continue
            move = Move.of(key, one, target, entry, alive[one.model], nearest_first, words, interventions)
            found.append((key.origin, move))
    moves = [one for _, one in found if isinstance(one, Move)]
    step = _Step(snapshot, ramps, max_step, homeward(moves, demands, targets, max_step), detail)
    for origin, way in found:
        classes[origin].append(step.taken(way, resting) if isinstance(way, Move) else way)
    return {
        region: RegionPlan(
            region,
            edition.generation,
            edition.epoch,
            edition.policy_digest,
            edition.now,
            tuple(entries),
            granted[region],
            closed=interventions.closed_to(region, policy.models),
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

    def taken(self, move: Move, resting: Resting) -> ClassPlan:
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
        if entry is None or entry != now:
            return now
        resting.note(key, entry, home)
        return entry


def _rests(key: Key, entry: ClassPlan, target: Mapping[str, float], resting: Resting, detail: Detail) -> bool:
    """Whether an entry in force comes out as it is."""
    home = resting.home(key, entry, target)
    if home is None:
        return False
    for arc in entry.arcs:
        if arc.server != home and arc.why is ArcReason.SPILLOVER and arc.detail != detail(key, home, arc.server):
            return False
    return True


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


def _known_tables(entry: ClassPlan, policy: Policy) -> ClassPlan:
    """An entry with the failover tables that name no region which the policy has no more."""
    known = tuple([way for way in entry.detours if all(arc.server in policy.regions for arc in way.arcs)])
    return entry if len(known) == len(entry.detours) else msgspec.structs.replace(entry, detours=known)


def _still_standing(before: RegionPlan | None, policy: Policy) -> list[ClassPlan]:
    """A slice's classes whose model and servers the policy still has; what a class permits lies in its name."""
    return [
        msgspec.structs.replace(
            _known_tables(one, policy), fallbacks=tuple(name for name in one.fallbacks if name in policy.regions)
        )
        for one in (before.classes if before is not None else ())
        if one.model in policy.models and all(arc.server in policy.regions for arc in one.arcs)
    ]


def _why_away(home: RegionState, home_serves: bool, returning: bool) -> ArcReason:
    if home is RegionState.RECOVERING or (returning and home_serves):
        return ArcReason.FAILBACK
    return ArcReason.SPILLOVER if home_serves else ArcReason.FAILOVER
