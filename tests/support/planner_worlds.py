"""Hypothesis strategies for small fleets, and for plans that may be in force in a fleet."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from penstock.fleet.capacity import supply
from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot, demand
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.override_effects import NO_INTERVENTIONS, narrowed, remaining
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.problem_builder import ProblemBuilder
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.tick_input import in_force, planned_for
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

NAMES = ("a", "b", "c", "d")
MODELS = ("m", "n")
SERVING = (RegionState.HEALTHY, RegionState.SUSPECT)
TARGET = 0.8

subsets = st.frozensets(st.sampled_from(NAMES), min_size=1)


class World(msgspec.Struct):
    policy: Policy
    snapshot: Snapshot
    previous: dict[str, RegionPlan]
    usable: dict[tuple[str, str], float]
    """Capacity (requests/s) up to the target by (region, model), for regions with usable capacity."""
    ramps: dict[str, float]
    """Maximum share (0-1) of a class, by region on its failback ramp."""

    def problems(self, *, fresh: bool = False) -> list[Problem]:
        demands = planned_for(self.policy, demand(self.snapshot, 0.0))
        before = {} if fresh else in_force(self.previous, demands)
        able, limits = supply(self.policy, self.snapshot, 0.0), NO_INTERVENTIONS.within(self.policy)
        open_demands = narrowed(demands, able, limits)
        return ProblemBuilder(self.policy).problems(open_demands, able, remaining(before, open_demands), limits)


@st.composite
def plans_before(draw: st.DrawFn) -> dict[str, RegionPlan]:
    """Any plan in force, including plans that violate residency."""
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
def worlds(draw: st.DrawFn, *, healthy: bool = False, max_rate: float = 60.0, reserve: bool | None = None) -> World:
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
    asked = draw(st.dictionaries(keys, st.floats(0.0, max_rate), max_size=8))
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
            DemandReport(
                model, residency_class(where).name, tuple(sorted(where)), rate, priority=draw(st.sampled_from((0, 5)))
            )
            for (origin, model, where), rate in asked.items()
            if origin == name
        )
        agents[name, "1"] = HeldReport(AgentReport(name, "1", 1, 1, 0.0, tuple(pools), offered), 0.0)
    return World(policy, Snapshot(agents, health), draw(plans_before()), usable, ramps)
