"""The waterfall as a logic that policy may name, and as what plans when another one fails.

The shares are those of `penstock.waterfall.pour`; around them is what every plan has: failover tables, what capacity is
missing, and what it costs by the yardstick that all are measured with.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.interventions import NO_INTERVENTIONS, Interventions
from penstock.moves import Key
from penstock.plan import RegionPlan
from penstock.planner.answers import Flows, cost, lacking
from penstock.planner.asking import ask
from penstock.planner.building import Builder
from penstock.planner.cost import Cost, flows
from penstock.planner.failover import Tables
from penstock.planner.planned import NOT_AHEAD, Planned
from penstock.policy import Policy
from penstock.resting import Resting
from penstock.slices import Edition, slices
from penstock.snapshot import Snapshot
from penstock.waterfall import pour


class GreedyPlanner:
    """Pours tick after tick; keeps distances and failover tables, and nothing that decides."""

    def __init__(self) -> None:
        self._builder: Builder | None = None
        self._tables = Tables()
        self._resting = Resting()

    def decide(
        self,
        policy: Policy,
        snapshot: Snapshot,
        previous: Mapping[str, RegionPlan],
        *,
        now: float,
        epoch: int,
        generation: int,
        elapsed_s: float,
        ahead: Mapping[Key, float] = NOT_AHEAD,
        interventions: Interventions = NO_INTERVENTIONS,
    ) -> Planned:
        """As `Planner.decide` says."""
        if self._builder is None or self._builder.policy is not policy:
            self._builder = Builder(policy)
            # What is kept of tables may name regions that this policy has no more.
            self._tables = Tables()
        builder = self._builder
        nearest_first = builder.distances.nearest_first
        interventions = interventions.within(policy)
        asked = ask(builder, snapshot, previous, now=now, ahead=ahead, interventions=interventions)
        wanted = pour(policy, asked.open_demands, asked.open_supply, nearest_first, interventions)
        plans = slices(
            policy,
            snapshot,
            previous,
            asked.before,
            asked.demands,
            wanted,
            asked.able,
            Edition(generation, epoch, builder.digest, now, elapsed_s),
            nearest_first=nearest_first,
            resting=self._resting,
            interventions=interventions,
        )
        plans = self._tables.carried(plans, asked.problems, now)
        answers = tuple(Flows(one, builder.confined(one.shape), *flows(one, wanted)) for one in asked.problems)
        return Planned(plans, {}, sum((cost(one) for one in answers), Cost()), lacking(answers), answers)
