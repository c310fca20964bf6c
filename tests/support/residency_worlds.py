"""Random fleets and requests, traced from the client to the serving region, to count residency violations.

A world consists of a policy, its next revision, which serving regions have applied, fleets in many failure states, and
plans of the real planners, some of them corrupted. A request is authorized, decided, retried after failures and
rejections, and checked by its server, with the functions that agents call. `allowed` determines whether a region may
process a request; it reads the rules region by region and shares no code with the mask.

The masks and the decisions of a server depend on few values, so each decision is computed once per world and cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random

import msgspec

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import Arc, ArcReason, Closed, RegionPlan
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts
from penstock.routing import decision
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionRequest, RegionView
from penstock.wire import route_context
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.route_context import RouteContext
from tests.support.planner_calls import tick_input
from tests.support.planner_calls import waterfall_plans as pour

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
TENANTS = ("t1", "t2", "t3")
DATA_CLASSES = ("personal", "open")
COUNTRIES = ("DE", "US", "JP")
PLACES = (Location(), *(Location(c) for c in (*COUNTRIES, "BR")), *(Location("US", s) for s in ("CA", "NY", "TX")))
MODEL = "m"
SIGNER = SpiffeId("test", ProcessRole.AGENT, "agent", "origin")
"""The agent that signs every forwarded request."""
FLEETS = 12
"""Number of fleets with random failure states per world."""
REQUESTS = 4_000
"""Number of requests per world."""
MAX_TRIES = 4


class Tally(msgspec.Struct):
    """Counts of the results of requests."""

    cases: int = 0
    """Requests, each with a policy, fleet, failure, origin, tenant and location."""
    attempts: int = 0
    """Regions chosen for requests, retries included."""
    served: int = 0
    refused_at_origin: int = 0
    """Requests that an origin rejected because of residency, location, or entry region."""
    refused_by_server: int = 0
    """Attempts that the check of the serving region rejected."""
    retried: int = 0
    worlds: int = 0
    violations: list[str] = []


class World:
    """One random world, with cached decisions."""

    def __init__(self, seed: int, max_regions: int = len(NAMES)) -> None:
        self.rng = Random(seed)
        self.names = NAMES[: self.rng.randint(2, max_regions)]
        self.policy = self._policy([])
        self.next_policy = self._policy(list(self.policy.residency)) if self.rng.random() < 0.5 else self.policy
        self.facts = [
            RequestFacts(tenant.name, tenant.data_class, place)
            for tenant, place in product(self.policy.tenants.values(), PLACES)
        ]
        self.allowed = {
            (revision, facts): allowed(policy, facts)
            for revision, policy in enumerate((self.policy, self.next_policy))
            for facts in self.facts
        }
        self.masks: dict[tuple[str, RequestFacts], Mask | Refusal] = {}
        for origin, facts in product(self.names, self.facts):
            self.masks[origin, facts] = decision.authorize_at_origin(self.policy, origin, MODEL, facts)
        self.fleets = [self._fleet() for _ in range(FLEETS)]
        self.plans = self._plans()
        self.accepted: dict[tuple[RequestFacts, frozenset[str], str, int], bool] = {}

    def follow(self, tally: Tally) -> None:
        """Trace one request to its end and check every region that receives the request."""
        rng = self.rng
        facts, origin = rng.choice(self.facts), rng.choice(self.names)
        tally.cases += 1
        residency = self.masks[origin, facts]
        may = self.allowed[0, facts]
        if isinstance(residency, Refusal):
            tally.refused_at_origin += 1
            if not may.issuperset(residency.try_regions):
                tally.violations.append(f"sends the client of {facts} to {residency.try_regions}")
            return
        if origin not in may:
            tally.violations.append(f"admits {facts} at {origin}")
        fleet, plan = rng.choice(self.fleets), rng.choice(self.plans)[origin]
        tried: dict[str, Reason] = {}
        overflow = rng.random() < 0.2
        for _ in range(MAX_TRIES):
            request = RegionRequest(origin, MODEL, residency.permitted, tried, overflow)
            decided = decision.decide(self.policy, plan, residency, request, fleet, rng)
            if isinstance(decided, Refusal):
                return
            region = decided.choice.region
            tally.attempts += 1
            if region not in may:
                tally.violations.append(f"chooses {region} for {facts}")
            if region != origin and not self._takes_it(facts, residency.permitted.regions, region):
                tally.refused_by_server += 1
                tried[region] = Reason.RESIDENCY_DENIED
            elif rng.random() < 0.7:
                tally.served += 1
                revision = 1 if region != origin else 0
                if region not in self.allowed[revision, facts]:
                    tally.violations.append(f"{region} serves {facts} against its own policy")
                return
            else:
                tried[region] = Reason.UNREACHABLE if rng.random() < 0.5 else Reason.SATURATED
                overflow = overflow or region == origin
            tally.retried += 1

    def _takes_it(self, facts: RequestFacts, permitted: frozenset[str], here: str) -> bool:
        """The decision of the serving region's agent, which has applied the next revision, on the signed facts."""
        about = (facts, permitted, here, 1)
        if about not in self.accepted:
            context = RouteContext(
                "r",
                SIGNER.region,
                here,
                facts.tenant,
                facts.data_class,
                facts.location,
                MODEL,
                tuple(permitted),
                "",
                0.0,
                60.0,
            )
            self.accepted[about] = route_context.check(context, SIGNER, self.next_policy, here, 1.0) is None
        return self.accepted[about]

    def _policy(self, rules: list[ResidencyRule]) -> Policy:
        rng = self.rng
        rules = rules[: rng.randint(0, len(rules))] + [self._rule(n) for n in range(rng.randint(0, 4))]
        ordered = self._orderly()
        return Policy(
            regions={name: self._region(name, name in ordered) for name in self.names},
            models={MODEL: Model(MODEL)},
            tenants={name: Tenant(name, rng.choice(DATA_CLASSES)) for name in TENANTS},
            residency=tuple(rules),
            spillover_limits=tuple(self._limit(n) for n in range(rng.choice((0, 0, 1, 2)))),
        )

    def _region(self, name: str, is_ordered: bool) -> Region:
        rng = self.rng
        order = tuple(rng.sample(self.names, rng.randint(1, 2))) if is_ordered else ()
        return Region(name, "XX", rng.uniform(-60, 60), rng.uniform(-180, 180), spillover_order=order)

    def _orderly(self) -> list[str]:
        """Origins with a spillover order; none in most worlds."""
        rng = self.rng
        return rng.sample(self.names, rng.choice((0, 0, 0, 1)))

    def _limit(self, number: int) -> SpilloverLimit:
        """A random spillover limit. Regions have equal costs, so a ceiling closes none or all except the origin."""
        rng = self.rng
        return SpilloverLimit(
            f"limit-{number}",
            origins=_some(rng, self.names, 0.5),
            max_cost_per_gpu_hour=rng.choice((None, 0.5, 2.0)),
            max_share=rng.choice((None, 0.0, 0.3)),
        )

    def _rule(self, number: int) -> ResidencyRule:
        rng = self.rng
        return ResidencyRule(
            f"rule-{number}",
            tenants=_some(rng, TENANTS, 0.3),
            data_classes=_some(rng, DATA_CLASSES, 0.3),
            client_countries=_some(rng, COUNTRIES, 0.3),
            client_subdivisions=_some(rng, ("US-CA", "US-NY", "DE-BE"), 0.1),
            allow=frozenset(rng.sample(self.names, rng.randint(1, len(self.names)))) if rng.random() < 0.6 else None,
            deny=_some(rng, self.names, 0.3),
        )

    def _fleet(self) -> dict[str, RegionView]:
        """Random health, capacity and credits of regions; some regions are unknown."""
        rng = self.rng
        states = (RegionState.HEALTHY,) * 4 + tuple(RegionState)
        return {
            name: RegionView(
                rng.choice(states),
                rng.random() < 0.9,
                rng.choice((1.0, 1.0, 0.5, 0.0)),
                rng.choice((0.0, 0.0, 3.0, 30.0)),
                rng.choice((0, 0, 2)),
            )
            for name in self.names
            if rng.random() < 0.95
        }

    def _plans(self) -> list[Mapping[str, RegionPlan | None]]:
        """Plans: none, those of both planners, after a loss, with regions closed by operators, and corrupted."""
        whole, hurt = self._snapshot(()), self._snapshot(self.rng.sample(self.names, 1))
        before = pour(self.policy, whole, {}, elapsed_s=1.0)
        after = pour(self.policy, hurt, before, elapsed_s=1.0)
        best = FlowPlanner().plan(tick_input(self.policy, hurt, before, elapsed_s=1.0)).plans
        closed = {
            name: msgspec.structs.replace(
                plan,
                closed=tuple(Closed(shut, MODEL, self.rng.random() < 0.5) for shut in _some(self.rng, self.names, 0.5)),
            )
            for name, plan in before.items()
        }
        spoilt = {name: _spoilt(plan) for name, plan in before.items()}
        return [dict.fromkeys(self.names), before, after, best, closed, spoilt]

    def _snapshot(self, lost: list[str] | tuple[str, ...]) -> Snapshot:
        rng = self.rng
        agents = {}
        for name in self.names:
            classes = {
                verdict.permitted.name: tuple(sorted(verdict.permitted.regions))
                for (origin, _), verdict in self.masks.items()
                if origin == name and isinstance(verdict, Mask)
            }
            demand = tuple(
                DemandReport(MODEL, *named_class, rng.choice((0.1, 5.0, 50.0))) for named_class in classes.items()
            )
            pool = PoolReport(MODEL, 1, 1, rng.choice((1, 10, 100)), 0, 1.0)
            if name not in lost:
                agents[name, "1"] = HeldReport(AgentReport(name, "1", 1, 1, 0.0, (pool,), demand), 0.0)
        states = {name: RegionState.FAILED if name in lost else RegionState.HEALTHY for name in self.names}
        return Snapshot(agents, {name: RegionHealth(state) for name, state in states.items()})


def follow(cases: int, seed: int) -> Tally:
    """Trace at least `cases` requests, with `REQUESTS` requests per world, and no world after one with a violation."""
    tally = Tally()
    while tally.cases < cases and not tally.violations:
        world = World(seed + tally.worlds)
        tally.worlds += 1
        for _ in range(REQUESTS):
            world.follow(tally)
    return tally


def allowed(policy: Policy, about: RequestFacts) -> frozenset[str]:
    """Regions that the rules permit, computed region by region."""
    permitted = set()
    for region in policy.regions:
        verdicts = []
        for rule in policy.residency:
            if rule.tenants and about.tenant not in rule.tenants:
                continue
            if rule.data_classes and about.data_class not in rule.data_classes:
                continue
            if rule.client_countries or rule.client_subdivisions:
                inside = _inside(rule, about.location)
                if inside is None:
                    return frozenset()
                if not inside:
                    continue
            verdicts.append(region not in rule.deny and (rule.allow is None or region in rule.allow))
        if all(verdicts):
            permitted.add(region)
    return frozenset(permitted)


def _inside(rule: ResidencyRule, place: Location) -> bool | None:
    if place.country is None:
        return None
    asked = {code[3:] for code in rule.client_subdivisions if code[:2] == place.country}
    if place.country in rule.client_countries or place.subdivision in asked:
        return True
    return None if asked and place.subdivision is None else False


def _some(rng: Random, of: tuple[str, ...], chance: float) -> frozenset[str]:
    return frozenset(name for name in of if rng.random() < chance) if rng.random() < 0.7 else frozenset()


def _spoilt(plan: RegionPlan) -> RegionPlan:
    """A plan with every region in every class: an agent must ignore the regions that residency forbids."""
    names = {arc.server for entry in plan.classes for arc in entry.arcs} | {
        name for e in plan.classes for name in e.fallbacks
    }
    arcs = tuple(Arc(name, 1.0 / len(names), ArcReason.HOME) for name in sorted(names))
    return msgspec.structs.replace(
        plan, classes=tuple(msgspec.structs.replace(entry, arcs=arcs, fallbacks=()) for entry in plan.classes)
    )
