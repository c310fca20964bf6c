"""The waterfall: each demand fills its home to the target, then the next nearest permitted regions.

Demand with the fewest permitted regions is placed first, since it has the fewest alternatives. Other planners are
compared with the waterfall, and use it as their fallback.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.fleet.capacity import Supply
from penstock.fleet.slot_placement import SlotPlacement
from penstock.fleet.snapshot import Demand
from penstock.overrides.override_effects import NO_INTERVENTIONS, Interventions
from penstock.planning.linear_program.flows import Flows
from penstock.planning.plan_builder import PlanBuilder
from penstock.planning.planner import PlanResult
from penstock.planning.share_change_limit import normalised
from penstock.planning.share_moves import Key, NearestFirst
from penstock.planning.tick_input import TickInput, workload
from penstock.policy.policy import Policy


class WaterfallPlanner:
    """Plans by the waterfall."""

    def __init__(self) -> None:
        self._builder = PlanBuilder()

    def plan(self, tick: TickInput) -> PlanResult:
        """As `Planner.plan`."""
        problems, work = self._builder.problems(tick.policy), workload(tick)
        nearest_first = problems.distances.nearest_first
        targets = waterfall_shares(tick.policy, work.open_demands, work.open_supply, nearest_first, work.limits)
        answers = [
            Flows.of_shares(problem, targets)
            for problem in problems.problems(work.open_demands, work.open_supply, work.open_in_force, work.limits)
        ]
        return self._builder.build(tick, work, targets, answers)


def waterfall_shares(
    policy: Policy,
    demands: Mapping[Key, Demand],
    supply: Mapping[tuple[str, str], Supply],
    nearest_first: NearestFirst,
    interventions: Interventions = NO_INTERVENTIONS,
) -> dict[Key, dict[str, float]]:
    """Target shares: first what spillover limits keep at the origin, then every demand at its home, then overflow.

    Demand that fits nowhere stays at home or, if home is on a failback ramp, at the nearest region that is not.
    """
    free = _placement(supply, policy.spillover.target_utilisation)
    placements = []
    for key, demand in sorted(demands.items(), key=lambda item: (len(item[1].regions), item[0])):
        choices = [name for name in nearest_first(demand.origin, demand.regions) if (name, demand.model) in supply]
        if choices:
            placements.append(_Placement(key, demand.requests_per_s, choices, supply))
    for placement in placements:
        placement.keep(1.0 - interventions.of(placement.key.origin, placement.key.model).max_away, free)
    for placement in placements:
        placement.fill(placement.choices[0], free)
    for placement in placements:
        for region in placement.choices:
            if placement.left <= 0.0:
                break
            placement.fill(region, free)
    return {placement.key: placement.shares() for placement in placements}


def _placement(supply: Mapping[tuple[str, str], Supply], part: float) -> SlotPlacement[tuple[str, str]]:
    """A placement of the slots of every region, by pool; each region offers a part (0-1) of its slots."""
    free: list[float] = []
    draws: dict[tuple[str, str], list[int]] = {}
    known: dict[tuple[str, tuple[str, ...]], int] = {}
    for (region, model), capacity in supply.items():
        draws[region, model] = [len(free)]
        free.append(capacity.own_slots * part)
        for group in sorted(capacity.shared, key=lambda group: len(group.models)):
            if (region, group.models) not in known:
                known[region, group.models] = len(free)
                free.append(group.slots * part)
            draws[region, model].append(known[region, group.models])
    return SlotPlacement(free, draws)


class _Placement:
    """One class's demand at one origin, in requests per second, and the regions that take it."""

    def __init__(
        self, key: Key, requests_per_s: float, choices: list[str], supply: Mapping[tuple[str, str], Supply]
    ) -> None:
        """`choices` are the permitted regions that can serve the demand, the nearest first; at least one."""
        self.key = key
        self.choices = choices
        self.left = requests_per_s
        self._service_s = {name: supply[name, key.model].service_s for name in choices}
        uncapped = [name for name in choices if supply[name, key.model].max_share >= 1.0]
        # If every region is on a ramp, the nearest takes the demand that fits nowhere.
        self._rest = uncapped[0] if uncapped else choices[0]
        self._limit = {
            name: self.left * supply[name, key.model].max_share if uncapped else self.left for name in choices
        }
        self._taken: dict[str, float] = {}

    def keep(self, part: float, free: SlotPlacement[tuple[str, str]]) -> None:
        """Place this part (0-1) of the demand at its origin if the origin can serve it, even beyond its capacity."""
        origin = self.key.origin
        if part > 0.0 and origin in self._limit:
            amount = min(part * self.left, self._limit[origin])
            free.place((origin, self.key.model), amount * self._service_s[origin])
            self._take(origin, amount)

    def fill(self, region: str, free: SlotPlacement[tuple[str, str]]) -> None:
        """Place as much in a region as its free capacity permits."""
        amount = min(self.left, self._limit[region])
        if amount > 0.0:
            slots = amount * self._service_s[region]
            placed = free.place((region, self.key.model), slots)
            self._take(region, amount if placed >= slots else placed / self._service_s[region])

    def _take(self, region: str, amount: float) -> None:
        if amount > 0.0:
            self._limit[region] -= amount
            self.left -= amount
            self._taken[region] = self._taken.get(region, 0.0) + amount

    def shares(self) -> dict[str, float]:
        """The amounts as shares. Agents queue, spill on credits, or refuse demand that fits nowhere."""
        taken = {**self._taken, self._rest: self._taken.get(self._rest, 0.0) + self.left}
        return normalised(taken) if sum(taken.values()) > 0.0 else {self._rest: 1.0}
