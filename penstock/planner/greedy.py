"""The waterfall as a logic that policy may name, and as what plans when another one fails.

The shares are those of `penstock.waterfall.pour`; around them is what every plan has: failover tables, what capacity is
missing, and what it costs by the yardstick that all are measured with.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.interventions import NO_INTERVENTIONS, Interventions
from penstock.moves import Key
from penstock.plan import RegionPlan
from penstock.planner.answers import Flows
from penstock.planner.asking import ask
from penstock.planner.cost import flows
from penstock.planner.plan_making import PlanMaker
from penstock.planner.planned import NOT_AHEAD, Planned
from penstock.policy import Policy
from penstock.slices import Edition
from penstock.snapshot import Snapshot
from penstock.waterfall import pour


class GreedyPlanner:
    """Pours tick after tick."""

    def __init__(self) -> None:
        self._maker = PlanMaker()

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
        builder = self._maker.builder(policy)
        interventions = interventions.within(policy)
        asked = ask(builder, snapshot, previous, now=now, ahead=ahead, interventions=interventions)
        wanted = pour(policy, asked.open_demands, asked.open_supply, builder.distances.nearest_first, interventions)
        answers = [Flows(one, builder.confined(one.shape), *flows(one, wanted)) for one in asked.problems]
        edition = Edition(generation, epoch, builder.digest, now, elapsed_s)
        return self._maker.planned(
            policy, snapshot, previous, asked, wanted, answers, edition, interventions, by_waterfall={}
        )
