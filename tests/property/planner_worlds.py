"""Small fleets of every kind to plan for, and the linear program of a plan written out in full, as a yardstick."""

from __future__ import annotations

import highspy
import msgspec
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from penstock.interventions import NO_INTERVENTIONS, narrowed, remaining
from penstock.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planner.answers import Flows, cost
from penstock.planner.building import Builder
from penstock.planner.losses import confinements
from penstock.planner.master import Master
from penstock.planner.problem import RETURNS, Prices, Problem, prices
from penstock.planner.queueing import PIECES
from penstock.planner.solving import solve
from penstock.policy import Model, Objective, Policy, Region, Spillover
from penstock.region_health import RegionHealth, RegionState
from penstock.report import AgentReport, DemandReport, PoolReport
from penstock.residency import residency_class
from penstock.slices import in_force, planned_for
from penstock.snapshot import Held, Snapshot, demand
from penstock.supply import supply

NAMES = ("a", "b", "c", "d")
MODELS = ("m", "n")
SERVING = (RegionState.HEALTHY, RegionState.SUSPECT)
TARGET = 0.8
PATIENT_S = 30.0

subsets = st.frozensets(st.sampled_from(NAMES), min_size=1)


class World(msgspec.Struct):
    policy: Policy
    snapshot: Snapshot
    previous: dict[str, RegionPlan]
    usable: dict[tuple[str, str], float]
    """Requests per second up to the target by (region, model), where there is anything to plan for."""
    ramps: dict[str, float]
    """The most (0-1) of a class that a region on its failback ramp may have."""

    def problems(self, *, fresh: bool = False) -> list[Problem]:
        demands = planned_for(self.policy, demand(self.snapshot, 0.0))
        before = {} if fresh else in_force(self.previous, demands)
        able, limits = supply(self.policy, self.snapshot, 0.0), NO_INTERVENTIONS.within(self.policy)
        open_demands = narrowed(demands, able, limits)
        return Builder(self.policy).problems(open_demands, able, remaining(before, open_demands), limits)


@st.composite
def plans_before(draw: st.DrawFn) -> dict[str, RegionPlan]:
    """Any plan in force: also one that sends a class where it may not be."""
    plans = {}
    for origin in draw(st.frozensets(st.sampled_from(NAMES))):
        classes = []
        for where in draw(st.lists(subsets, max_size=4, unique=True)):
            shares = draw(st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 1.0), min_size=1))
            arcs = tuple(Arc(name, share / sum(shares.values()), ArcReason.HOME) for name, share in shares.items())
            classes.append(ClassPlan(draw(st.sampled_from(MODELS)), residency_class(where).name, arcs, ()))
        plans[origin] = RegionPlan(origin, 1, 1, "", 0.0, tuple(classes))
    return plans


@st.composite
def worlds(draw: st.DrawFn, *, healthy: bool = False, largest_rate: float = 60.0, reserve: bool | None = None) -> World:
    regions = {
        name: Region(
            name,
            "DE",
            draw(st.floats(-60, 60)),
            draw(st.floats(-179, 179)),
            cost_per_gpu_hour=draw(st.sampled_from((0.5, 1.0, 3.0))),
            egress_cost_per_gb=draw(st.sampled_from((0.0, 0.1))),
        )
        for name in NAMES
    }
    policy = Policy(
        regions=regions,
        models={name: Model(name, response_bytes=1e6) for name in MODELS},
        tenants={},
        residency=(),
        spillover=Spillover(target_utilisation=TARGET, step_per_s=0.25),
        objective=Objective(survive_one_loss=draw(st.booleans()) if reserve is None else reserve),
    )
    keys = st.tuples(st.sampled_from(NAMES), st.sampled_from(MODELS), subsets)
    asked = draw(st.dictionaries(keys, st.floats(0.0, largest_rate), max_size=8))
    states = SERVING if healthy else (*SERVING, RegionState.FAILED, RegionState.UNKNOWN)
    agents, health, usable, ramps = {}, {}, {}, {}
    for name in NAMES:
        state = draw(st.sampled_from(states))
        ramping_s = draw(st.floats(1.0, policy.failover.failback_ramp_s)) if state is RegionState.RECOVERING else 0.0
        health[name] = RegionHealth(state, -ramping_s)
        if state is RegionState.RECOVERING and ramping_s < policy.failover.failback_ramp_s:
            ramps[name] = ramping_s / policy.failover.failback_ramp_s
        pools = []
        for model in MODELS:
            slots, ready = draw(st.integers(1, 100)), draw(st.integers(1 if healthy else 0, 2))
            service_s = draw(st.sampled_from((0.5, 1.0, 2.0)))
            pools.append(PoolReport(model, 2, ready, slots, 0, service_s))
            if state in (*SERVING, RegionState.RECOVERING) and ready:
                usable[name, model] = slots * TARGET / service_s
        offered = tuple(
            DemandReport(model, residency_class(where).name, tuple(sorted(where)), rate)
            for (origin, model, where), rate in asked.items()
            if origin == name
        )
        agents[name, "1"] = Held(AgentReport(name, "1", 1, 1, 0.0, tuple(pools), offered), 0.0)
    return World(policy, Snapshot(agents, health), draw(plans_before()), usable, ramps)


def optimum(problem: Problem) -> tuple[Flows, float, Prices]:
    sets = confinements(problem.shape.permitted)
    price = prices(problem, sets.most_confined)
    master = Master(problem, sets if problem.survive_one_loss else None)
    answer = solve(master, problem, price, PATIENT_S)
    return Flows(problem, sets, *master.flows(answer)), answer.cost, price


class WrittenOut:
    """The program with every permitted arc and, for every region, the whole rerouting at its loss; nothing is clever.

    Args:
        price: what scarcity costs.
        weigh: whether ordinary costs count; without them, only scarcity does.
    """

    def __init__(self, problem: Problem, price: Prices, *, weigh: bool = True) -> None:
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        shape, capacity = problem.shape, problem.capacity_per_s
        keys, pools = range(len(shape.keys)), range(len(shape.pools))
        may = [[bool(shape.permitted[shape.group_of[k], p]) for p in pools] for k in keys]
        held = {(k, p): d for k, p, d in zip(*self._held(problem), strict=True)}
        flow, load = {}, {p: [] for p in pools}
        for k in keys:
            for p in pools:
                if may[k][p]:
                    reach = float(problem.reach_s[shape.origin_of[k], p]) * weigh
                    moves = (
                        weigh
                        * problem.change_s
                        * bool(problem.held.planned[k])
                        * (RETURNS if p == problem.home[k] else 1.0)
                    )
                    both = [self._column(reach, held.get((k, p), 0.0)), self._column(reach + moves)]
                    flow[k, p] = both
                    load[p] += both
            for p in pools:
                if may[k][p] and p == problem.origin[k] and problem.slots[p] > 0.0:
                    ramp = problem.most[p] if problem.capped[k] else 1.0
                    least = float(min(problem.kept[k], ramp) * problem.demand[k])
                    self._row(least, np.inf, [(c, 1.0) for c in flow[k, p]])
                if may[k][p] and problem.capped[k] and problem.most[p] < 1.0:
                    self._row(-np.inf, float(problem.most[p] * problem.demand[k]), [(c, 1.0) for c in flow[k, p]])
            self._row(problem.demand[k], problem.demand[k], [(c, 1.0) for p in pools if may[k][p] for c in flow[k, p]])
        self.reserve: list[int] = []
        for p in pools:
            costs = [*problem.piece_cost_s[p, : PIECES - 2] * weigh, price.past_target, price.no_room]
            pieces = [
                self._column(float(cost) + weigh * float(problem.gpu_s[p]), float(width))
                for cost, width in zip(costs, problem.piece_per_s[p], strict=True)
            ]
            self._row(0.0, 0.0, [(c, 1.0) for c in load[p]] + [(c, -1.0) for c in pieces])
        for lost in pools if problem.survive_one_loss else ():
            arrives: dict[int, list[int]] = {p: [] for p in pools}
            for k in keys:
                if may[k][lost]:
                    missing = self._column(price.reserve)
                    self.reserve.append(missing)
                    moved = [missing]
                    for p in pools:
                        if p != lost and may[k][p]:
                            moved.append(self._column(0.0))
                            arrives[p].append(moved[-1])
                    self._row(0.0, 0.0, [(c, 1.0) for c in flow[k, lost]] + [(c, -1.0) for c in moved])
            for p in pools:
                if p != lost:
                    self._row(-np.inf, float(capacity[p]), [(c, 1.0) for c in load[p] + arrives[p]])
        self._highs.run()
        assert self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        self.cost = self._highs.getInfo().objective_function_value
        values = self._highs.getSolution().col_value
        self.missing_at_losses = sum(values[c] for c in self.reserve)

    @staticmethod
    def _held(problem: Problem) -> tuple[list[int], list[int], list[float]]:
        held = problem.held
        return held.key.tolist(), held.pool.tolist(), held.stays_per_s(problem.demand).tolist()

    def _column(self, cost: float, upper: float = np.inf) -> int:
        self._highs.addCol(cost, 0.0, upper, 0, [], [])
        return self._highs.getNumCol() - 1

    def _row(self, lower: float, upper: float, entries: list[tuple[int, float]]) -> None:
        columns, values = [c for c, _ in entries], [v for _, v in entries]
        self._highs.addRow(lower, upper, len(entries), np.array(columns, np.int32), np.array(values, float))


def assert_costs_what_is_written_out(world: World) -> None:
    """No plan of the program as one would write it down is cheaper than ours, and ours costs what it claims."""
    for problem in world.problems():
        found, claimed, price = optimum(problem)
        parts = cost(found)
        assert abs(parts.total - claimed) <= 1e-6 * (1.0 + abs(claimed))
        # Where demand is more than all slots, what is missing at a loss counts what is missing already.
        assume(parts.no_room == 0.0)
        assert abs(WrittenOut(problem, price).cost - claimed) <= 1e-5 * (1.0 + abs(claimed))
