"""The greedy planner: fill home to its target, let the rest run down to the next nearest permitted region.

Classes with the fewest permitted regions drink first, since they have the fewest other places to go. It is the
yardstick of any better planner, and the fallback when one fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.fleet.capacity import Supply, supply
from penstock.fleet.snapshot import Demand, Snapshot, demand
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions, narrowed, scaled
from penstock.planning.change_limit import without_crumbs
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_slices import Edition, in_force, planned_for, slices
from penstock.planning.share_moves import Key, NearestFirst
from penstock.policy.policy import Policy


def plan(
    policy: Policy,
    snapshot: Snapshot,
    previous: dict[str, RegionPlan],
    *,
    now: float,
    epoch: int,
    generation: int,
    elapsed_s: float,
    interventions: Interventions = NO_INTERVENTIONS,
) -> dict[str, RegionPlan]:
    """One plan for the planet: a slice for every region of the policy.

    An origin that is not heard from keeps what it had: silence is no news of its demand.

    Args:
        previous: the slices in force, from which shares move at a bounded rate.
        now: the planner's clock, in seconds; for ages and ramps.
        elapsed_s: time since `previous` was made, in seconds.
        interventions: what operators want meanwhile.
    """
    interventions = interventions.within(policy)
    able = supply(policy, snapshot, now)
    demands = planned_for(policy, demand(snapshot, now))
    left, free = narrowed(demands, able, interventions), scaled(able, interventions)
    wanted = pour(policy, left, free, policy.nearest_first, interventions)
    edition = Edition(generation, epoch, policy.digest(), now, elapsed_s)
    return slices(
        policy,
        snapshot,
        previous,
        in_force(previous, demands),
        demands,
        wanted,
        able,
        edition,
        nearest_first=policy.nearest_first,
        interventions=interventions,
    )


def pour(
    policy: Policy,
    demands: Mapping[Key, Demand],
    able: Mapping[tuple[str, str], Supply],
    nearest_first: NearestFirst,
    interventions: Interventions = NO_INTERVENTIONS,
) -> dict[Key, dict[str, float]]:
    """The shares wanted: what limits of spillover keep at its origin, then home first for everybody, then overflow.

    What fits nowhere stays at home, or with the nearest that is whole where home is on its failback ramp.
    """
    free = {key: one.slots * policy.spillover.target_utilisation for key, one in able.items()}
    pourings = []
    for key, one in sorted(demands.items(), key=lambda one: (len(one[1].regions), one[0])):
        choices = [name for name in nearest_first(one.origin, one.regions) if (name, one.model) in able]
        if choices:
            pourings.append(_Pouring(key, one.requests_per_s, choices, able))
    for pouring in pourings:
        pouring.keep(1.0 - interventions.of(pouring.key.origin, pouring.key.model).max_away, free)
    for pouring in pourings:
        pouring.pour_into(pouring.choices[0], free)
    for pouring in pourings:
        for region in pouring.choices:
            if pouring.left <= 0.0:
                break
            pouring.pour_into(region, free)
    return {pouring.key: pouring.shares() for pouring in pourings}


class _Pouring:
    """One class's demand at one origin, in slots, on its way into regions."""

    def __init__(
        self, key: Key, requests_per_s: float, choices: list[str], able: Mapping[tuple[str, str], Supply]
    ) -> None:
        """`choices` are the permitted regions that can serve it, the nearest first; at least one."""
        self.key = key
        self.choices = choices
        self.left = requests_per_s * able[choices[0], key.model].service_s
        whole = [name for name in choices if able[name, key.model].max_share >= 1.0]
        # A region on its ramp is better than none.
        self._rest = whole[0] if whole else choices[0]
        self._room = {name: self.left * able[name, key.model].max_share if whole else self.left for name in choices}
        self._taken: dict[str, float] = {}

    def keep(self, part: float, free: dict[tuple[str, str], float]) -> None:
        """Pour this part (0-1) of everything into the origin if that can serve it, whether there is room or not."""
        origin = self.key.origin
        if part > 0.0 and origin in self._room:
            self._pour(origin, min(part * self.left, self._room[origin]), free)

    def pour_into(self, region: str, free: dict[tuple[str, str], float]) -> None:
        """Pour as much into a region as there is room for."""
        self._pour(region, min(self.left, self._room[region], free[region, self.key.model]), free)

    def _pour(self, region: str, amount: float, free: dict[tuple[str, str], float]) -> None:
        if amount > 0.0:
            free[region, self.key.model] -= amount
            self._room[region] -= amount
            self.left -= amount
            self._taken[region] = self._taken.get(region, 0.0) + amount

    def shares(self) -> dict[str, float]:
        """Amounts to shares. What fits nowhere is for agents to queue, to spill by credit, or to refuse."""
        taken = {**self._taken, self._rest: self._taken.get(self._rest, 0.0) + self.left}
        return without_crumbs(taken) if sum(taken.values()) > 0.0 else {self._rest: 1.0}
