"""The planner: the cheapest shares for all demand at once, within residency, capacity and reserve.

The answer of one tick is the start of the next one's search; where a model has
none in time, the waterfall decides for that model and tick, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.fleet.snapshot import Snapshot
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions
from penstock.planning.hysteresis import Steadiness
from penstock.planning.linear_program.master import Master, OutOfTime, Unsolved
from penstock.planning.linear_program.n_minus_one import Confinements
from penstock.planning.linear_program.plan_cost import flows
from penstock.planning.linear_program.problem import Problem, prices
from penstock.planning.linear_program.problem_builder import Builder
from penstock.planning.linear_program.solution import Details, Flows, shares
from penstock.planning.linear_program.solver import solve
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_builder import PlanMaker
from penstock.planning.plan_slices import Edition
from penstock.planning.planner import NOT_AHEAD, Planned
from penstock.planning.share_moves import Key, NearestFirst
from penstock.planning.tick_input import Asked, ask
from penstock.planning.unchanged_cache import is_as_wanted
from penstock.planning.waterfall import pour
from penstock.policy.policy import Policy


class FlowPlanner:
    """Plans tick after tick; keeps what the last ticks taught it, and nothing that decides on its own.

    Args:
        time_limit_s: how long (s) the solver may take for one tick, all models together.
    """

    def __init__(self, time_limit_s: float = 0.25) -> None:
        self._time_limit_s = time_limit_s
        self._maker = PlanMaker()
        self._masters: dict[str, Master] = {}
        self._steadiness = Steadiness()

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
        answers, late = self._answers(builder, asked.problems)
        wanted: dict[Key, Mapping[str, float]] = {}
        for one in answers:
            wanted |= shares(one)
        if late:
            left = {key: one for key, one in asked.open_demands.items() if key.model in late}
            greedy = pour(policy, left, asked.open_supply, builder.distances.nearest_first, interventions)
            answers += [
                Flows(one, builder.confined(one.shape), *flows(one, greedy))
                for one in asked.problems
                if one.shape.model in late
            ]
            wanted |= greedy
        targets = self._steadied(wanted, asked, interventions, builder.distances.nearest_first, now)
        return self._maker.planned(
            policy,
            snapshot,
            previous,
            asked,
            targets,
            answers,
            Edition(generation, epoch, builder.digest, now, elapsed_s),
            interventions,
            by_waterfall=late,
            detail=Details(answers, targets, builder.distances),
        )

    def _answers(self, builder: Builder, problems: list[Problem]) -> tuple[list[Flows], dict[str, str]]:
        """The cheapest flows of the models that have an answer in time, small ones first; why the others have none."""
        left_s = self._time_limit_s
        answers, late = [], {}
        for problem in sorted(problems, key=lambda one: len(one.shape.keys)):
            sets = builder.confined(problem.shape)
            master = self._master(problem, sets)
            before_s = master.ran_s
            try:
                answer = solve(master, problem, prices(problem, sets.max_confined), left_s)
                answers.append(Flows(problem, sets, *master.flows(answer)))
            except Unsolved as stopped:
                late[problem.shape.model] = str(stopped)
                if not isinstance(stopped, OutOfTime):
                    del self._masters[problem.shape.model]
            left_s -= master.ran_s - before_s
        return answers, late

    def _steadied(
        self,
        wanted: Mapping[Key, Mapping[str, float]],
        asked: Asked,
        interventions: Interventions,
        nearest_first: NearestFirst,
        now: float,
    ) -> dict[Key, Mapping[str, float]]:
        """What is wanted, without turning round for a whim; whatever comes, goes, ramps or is overridden is none."""
        for model in {key.model for key in wanted}:
            serving = {(name, one.max_share) for (name, of), one in asked.able.items() if of == model}
            self._steadiness.begin(model, (serving, interventions.overrides), now)
        self._steadiness.keep(wanted)
        steadied = dict(wanted)
        for key, target in wanted.items():
            entry = asked.before.get(key)
            if entry is None or (is_as_wanted(entry, target) and self._steadiness.is_calm(key, entry)):
                continue
            standing = {arc.server: arc.share for arc in entry.arcs}
            permitted = asked.open_demands[key].regions
            if all(server in permitted and (server, key.model) in asked.able for server in standing):
                nearest = nearest_first(key.origin, permitted)
                home = next(name for name in nearest if (name, key.model) in asked.able)
                steadied[key] = self._steadiness.steadied(key, home, standing, target, now)
                if standing == target:
                    self._steadiness.calm(key, entry)
        return steadied

    def _master(self, problem: Problem, sets: Confinements) -> Master:
        kept = self._masters.get(problem.shape.model)
        if kept is None or kept.program.shape is not problem.shape or kept.outgrown():
            kept = Master(problem, sets if problem.survive_one_loss else None, kept)
            self._masters[problem.shape.model] = kept
        return kept
