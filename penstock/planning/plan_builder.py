"""Builds a plan from target shares: the steps that all planners have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.planning.failover_tables import FailoverTableSchedule
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.plan_cost import Cost, evaluate
from penstock.planning.linear_program.planned_shortfall import shortfalls
from penstock.planning.linear_program.problem_builder import ProblemBuilder
from penstock.planning.plan_slices import Detail, no_detail, slices
from penstock.planning.planner import PlanResult
from penstock.planning.share_moves import Key
from penstock.planning.tick_input import TickInput, Workload
from penstock.policy.policy import Policy


class PlanBuilder:
    """Builds the plans of one planner; keeps distances, program shapes and failover tables between ticks."""

    def __init__(self) -> None:
        self._problems: ProblemBuilder | None = None
        self._tables = FailoverTableSchedule()

    def problems(self, policy: Policy) -> ProblemBuilder:
        """The problem builder of a policy, which is kept until the policy changes."""
        if self._problems is None or self._problems.policy is not policy:
            self._problems = ProblemBuilder(policy)
            # The kept tables may name regions that the new policy does not have.
            self._tables = FailoverTableSchedule()
        return self._problems

    def build(
        self,
        tick: TickInput,
        work: Workload,
        targets: Mapping[Key, Mapping[str, float]],
        answers: Sequence[Flows],
        *,
        fallbacks: dict[str, str] | None = None,
        detail: Detail = no_detail,
    ) -> PlanResult:
        """The plan that moves from the slices in force towards the target shares.

        Args:
            tick: the planner's input.
            work: the demand and supply of the tick.
            targets: shares by key.
            answers: the flows that the target shares were computed from, by model.
            fallbacks: as in `PlanResult`.
            detail: returns the detail of an arc.
        """
        nearest_first = self.problems(tick.policy).distances.nearest_first
        plans = slices(tick, work, targets, nearest_first, detail)
        return PlanResult(
            self._tables.with_tables(plans, [flows.problem for flows in answers], tick.now),
            fallbacks or {},
            sum((evaluate(flows) for flows in answers), Cost()),
            tuple(shortfall for flows in answers for shortfall in shortfalls(flows)),
            tuple(answers),
        )
