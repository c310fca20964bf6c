"""From wanted shares to a plan: what every logic does around its own decision, and keeps from tick to tick for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.interventions import Interventions
from penstock.moves import Key
from penstock.plan import RegionPlan
from penstock.planner.answers import Flows, cost, lacking
from penstock.planner.asking import Asked
from penstock.planner.building import Builder
from penstock.planner.cost import Cost
from penstock.planner.failover import Tables
from penstock.planner.planned import Planned
from penstock.policy import Policy
from penstock.resting import Resting
from penstock.slices import Detail, Edition, no_detail, slices
from penstock.snapshot import Snapshot


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
