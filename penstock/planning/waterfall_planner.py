"""The waterfall as a logic that policy may name, and as what plans when another one fails.

The shares are those of `penstock.planning.waterfall.pour`; around them is what every plan has: failover tables, the
capacity shortfall, and the cost by the objective that all planners are measured with.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.fleet.snapshot import Snapshot
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions
from penstock.planning.linear_program.plan_cost import flows
from penstock.planning.linear_program.solution import Flows
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_builder import PlanMaker
from penstock.planning.plan_slices import Edition
from penstock.planning.planner import NOT_AHEAD, Planned
from penstock.planning.share_moves import Key
from penstock.planning.tick_input import ask
from penstock.planning.waterfall import pour
from penstock.policy.policy import Policy


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
