"""From wanted shares to a plan: what every logic does around its own decision, and keeps from tick to tick for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.fleet.snapshot import Snapshot
from penstock.overrides.interventions import Interventions
from penstock.planning.failover_tables import Tables
from penstock.planning.linear_program.plan_cost import Cost
from penstock.planning.linear_program.problem_builder import Builder
from penstock.planning.linear_program.solution import Flows, cost, lacking
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_slices import Detail, Edition, no_detail, slices
from penstock.planning.planner import Planned
from penstock.planning.share_moves import Key
from penstock.planning.tick_input import Asked
from penstock.planning.unchanged_cache import Resting
from penstock.policy.policy import Policy


class PlanMaker:
    """Makes the plans of one planner; keeps distances, failover tables and what rests, and nothing that decides."""

    def __init__(self) -> None:
        self._builder: Builder | None = None
        self._tables = Tables()
        self._resting = Resting()

    def builder(self, policy: Policy) -> Builder:
        """The builder of this policy; another one begins anew when the policy is another."""
        if self._builder is None or self._builder.policy is not policy:
            self._builder = Builder(policy)
            # What is kept of tables may name regions that this policy has no more.
            self._tables = Tables()
        return self._builder

    def planned(
        self,
        policy: Policy,
        snapshot: Snapshot,
        previous: Mapping[str, RegionPlan],
        asked: Asked,
        targets: Mapping[Key, Mapping[str, float]],
        answers: Sequence[Flows],
        edition: Edition,
        interventions: Interventions,
        *,
        by_waterfall: dict[str, str],
        detail: Detail = no_detail,
    ) -> Planned:
        """The plan that moves from what is in force towards `targets`, with what there is to say about it.

        Args:
            previous: the slices in force.
            asked: the tick's question.
            targets: the shares wanted, by key.
            answers: what they follow from, by model.
            interventions: what operators want, within this policy.
            by_waterfall: as in `Planned`.
            detail: says of an arc what made it.
        """
        plans = slices(
            policy,
            snapshot,
            previous,
            asked.before,
            asked.demands,
            targets,
            asked.able,
            edition,
            nearest_first=self.builder(policy).distances.nearest_first,
            detail=detail,
            resting=self._resting,
            interventions=interventions,
        )
        plans = self._tables.carried(plans, asked.problems, edition.now)
        whole = sum((cost(one) for one in answers), Cost())
        return Planned(plans, by_waterfall, whole, lacking(answers), tuple(answers))
