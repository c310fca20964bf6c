"""The planner: the cheapest shares for all demand at once, within residency, capacity and reserve.

Same door as `penstock.waterfall.plan`. The answer of one tick is the start of the next one's search; where a model has
none in time, the waterfall decides for that model and tick, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.interventions import NO_INTERVENTIONS, Interventions, narrowed, remaining, scaled
from penstock.plan import ClassPlan, RegionPlan
from penstock.planner.answers import Details, Flows, cost, lacking, shares
from penstock.planner.building import Builder
from penstock.planner.cost import Cost, flows
from penstock.planner.failover import Tables
from penstock.planner.losses import Confinements, confinements
from penstock.planner.master import Master, OutOfTime, Unsolved
from penstock.planner.problem import Ints, Problem, Shape, prices
from penstock.planner.queueing import Floats
from penstock.planner.shortfall import Shortfall
from penstock.planner.solving import solve
from penstock.planner.steadiness import Steadiness
from penstock.policy import Policy
from penstock.slices import Edition, Key, in_force, planned_for, slices
from penstock.snapshot import Demand, Snapshot, demand
from penstock.supply import Supply, supply
from penstock.waterfall import pour

BELIEVED_AHEAD = 0.9
"""How much of a forecast is planned for: a step looks like a trend for a while, and overshooting it by less than the
rest must not move shares there and back."""

NOT_AHEAD: Mapping[Key, float] = {}


class Planned(msgspec.Struct, frozen=True):
    """A plan, and what there is to say about it."""

    plans: dict[str, RegionPlan]
    """One slice for every region of the policy."""
    by_waterfall: dict[str, str]
    """Models whose shares the waterfall decided, since the solver found no answer, and why it did not."""
    cost: Cost
    """Of the shares wanted, which the plan may still be some steps away from."""
    shortfalls: tuple[Shortfall, ...]
    """What capacity is missing where."""
    answers: tuple[Flows, ...]
    """What was wanted and from what it follows, by model; for `detours` and for looking closer."""


class FlowPlanner:
    """Plans tick after tick; keeps what the last ticks taught it, and nothing that decides on its own.

    Args:
        time_limit_s: how long (s) the solver may take for one tick, all models together.
    """

    def __init__(self, time_limit_s: float = 0.25) -> None:
        self._time_limit_s = time_limit_s
        self._builder: Builder | None = None
        self._masters: dict[str, Master] = {}
        self._sets: dict[str, tuple[Shape, Confinements]] = {}
        self._steadiness = Steadiness()
        self._tables = Tables()

    def plan(
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
    ) -> dict[str, RegionPlan]:
        """The plan of `decide`, through the door that every planner has."""
        return self.decide(
            policy,
            snapshot,
            previous,
            now=now,
            epoch=epoch,
            generation=generation,
            elapsed_s=elapsed_s,
            ahead=ahead,
            interventions=interventions,
        ).plans

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
        """One plan for the planet, and why it is that one.

        Args:
            previous: the slices in force, from which shares move at a bounded rate.
            now: the planner's clock, in seconds; for ages and ramps.
            elapsed_s: time since `previous` was made, in seconds.
            ahead: demand forecast by key, in requests per second; a plan is for most of it
                where that is more than what is measured.
            interventions: what operators want meanwhile.
        """
        if self._builder is None or self._builder.policy is not policy:
            self._builder = Builder(policy)
            # What is kept of tables may name regions that this policy has no more.
            self._tables = Tables()
        builder = self._builder
        able = supply(policy, snapshot, now)
        demands = {key: _raised(key, one, ahead) for key, one in planned_for(policy, demand(snapshot, now)).items()}
        before = in_force(previous, demands)
        asked, open_supply = narrowed(demands, able, interventions), scaled(able, interventions)
        problems = builder.problems(asked, open_supply, remaining(before, asked) if interventions.overrides else before)
        answers, late = self._answers(problems)
        wanted = {key: table for one in answers for key, table in shares(one).items()}
        if late:
            left = {key: one for key, one in asked.items() if key.model in late}
            greedy = pour(policy, left, open_supply, builder.distances.nearest_first)
            answers += [self._weighed(one, *flows(one, greedy)) for one in problems if one.shape.model in late]
            wanted |= greedy
        targets = self._steadied(wanted, asked, before, able, interventions, now)
        plans = slices(
            policy,
            snapshot,
            previous,
            before,
            demands,
            targets,
            able,
            Edition(generation, epoch, builder.digest, now, elapsed_s),
            nearest_first=builder.distances.nearest_first,
            detail=Details(answers, targets, builder.distances),
            interventions=interventions,
        )
        plans = self._tables.carried(plans, before, problems, now)
        return Planned(plans, late, sum((cost(one) for one in answers), Cost()), lacking(answers), tuple(answers))

    def _answers(self, problems: list[Problem]) -> tuple[list[Flows], dict[str, str]]:
        """The cheapest flows of the models that have an answer in time, small ones first; why the others have none."""
        left_s = self._time_limit_s
        answers, late = [], {}
        for problem in sorted(problems, key=lambda one: len(one.shape.keys)):
            sets = self._confined(problem.shape)
            master = self._master(problem, sets)
            before_s = master.ran_s
            try:
                answer = solve(master, problem, prices(problem, sets.most_confined), left_s)
                answers.append(self._weighed(problem, *master.flows(answer)))
            except Unsolved as stopped:
                late[problem.shape.model] = str(stopped)
                if not isinstance(stopped, OutOfTime):
                    del self._masters[problem.shape.model]
            left_s -= master.ran_s - before_s
        return answers, late

    def _steadied(
        self,
        wanted: Mapping[Key, Mapping[str, float]],
        asked: Mapping[Key, Demand],
        before: Mapping[Key, ClassPlan],
        able: Mapping[tuple[str, str], Supply],
        interventions: Interventions,
        now: float,
    ) -> dict[Key, Mapping[str, float]]:
        """What is wanted, without turning round for a whim; whatever comes, goes, ramps or is overridden is none."""
        assert self._builder is not None
        nearest_first = self._builder.distances.nearest_first
        for model in {key.model for key in wanted}:
            serving = {(name, one.most) for (name, of), one in able.items() if of == model}
            self._steadiness.begin(model, (serving, interventions.overrides), now)
        self._steadiness.keep(wanted)
        steadied = {}
        for key, target in wanted.items():
            entry = before.get(key)
            standing = {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}
            permitted = asked[key].regions
            if self._steadiness.is_calm(key, standing, target):
                steadied[key] = target
                continue
            if all(server in permitted and (server, key.model) in able for server in standing):
                nearest = nearest_first(key.origin, permitted)
                home = next(name for name in nearest if (name, key.model) in able)
                target = self._steadiness.steadied(key, home, standing, target, now)
            steadied[key] = target
        return steadied

    def _weighed(self, problem: Problem, key: Ints, pool: Ints, flow: Floats) -> Flows:
        return Flows(problem, self._confined(problem.shape), key, pool, flow)

    def _confined(self, shape: Shape) -> Confinements:
        kept = self._sets.get(shape.model)
        if kept is None or kept[0] is not shape:
            kept = (shape, confinements(shape.permitted))
            self._sets[shape.model] = kept
        return kept[1]

    def _master(self, problem: Problem, sets: Confinements) -> Master:
        kept = self._masters.get(problem.shape.model)
        if kept is None or kept.program.shape is not problem.shape or kept.outgrown():
            kept = Master(problem, sets if problem.survive_one_loss else None, kept)
            self._masters[problem.shape.model] = kept
        return kept


def _raised(key: Key, one: Demand, ahead: Mapping[Key, float]) -> Demand:
    expected = BELIEVED_AHEAD * ahead.get(key, 0.0)
    return msgspec.structs.replace(one, requests_per_s=expected) if expected > one.requests_per_s else one
