"""Simulates many regions with engines and agents on one virtual clock and one core.

Planner, region selection, region health, endpoint chooser and queues are the product's code. Regions form jurisdictions
that no request may leave. The planner uses reports of a given age, and regions probe each other at the interval of the
policy. Regions may fail, and engines may be slow or start cold.
"""

from __future__ import annotations

import time
from functools import partial
from math import cos, pi, radians, sin
from random import Random

import msgspec

from lab.quantile import quantile
from lab.simulate.clock import VirtualClock
from lab.simulate.delayed_planner import DelayedPlanner
from lab.simulate.fleets import CHAT_COST, CHAT_ENGINES, CHAT_MODEL, ChatFleet
from lab.simulate.penstock_agent import PenstockAgent
from lab.simulate.region import Region, Served
from lab.traces.generate import Arrivals, generate
from lab.traces.trace import TraceRequest
from penstock.fleet.demand import ArrivalRate
from penstock.fleet.expected_wait import expected_wait_s
from penstock.fleet.report import DemandReport, PoolReport
from penstock.health.region_health import RegionHealth, RegionState, observe
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.policy.kinds.models import Model, Queueing
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region as PolicyRegion
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass, residency_class
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import RegionRequest, RegionView, draw, region_options

PLAN_INTERVAL_S = 5.0
"""Interval (s) of reports and plans."""

SERVICE_S = 2.0
"""Expected service time (s) of a request before the first completion."""

LENGTHS_S = 100.0
"""Length (s) of the generated trace from which the lengths of requests are drawn."""

DRAIN_S = 120.0
"""Maximum time (s) to wait for responses after the last arrival."""


class Faults(msgspec.Struct, frozen=True):
    """The faults of a run."""

    lost_regions: int = 0
    """Number of regions, each of a different jurisdiction, that fail permanently in the middle of the run."""
    slow_engines: int = 0
    """Engines per region that become ten times as slow in the middle of the run."""
    cold_engines: int = 0
    """Engines per region that load their model during the first half of the run."""


class WorldConfig(msgspec.Struct, frozen=True):
    """Size, demand and faults of a simulated world."""

    regions: int
    endpoints: int
    """Endpoints per region."""
    rate_per_s: float
    """Total rate (requests/s) of all regions."""
    seconds: float
    """Duration (s) of arrivals."""
    agents: int = 2
    """Agents per region."""
    jurisdiction: int = 20
    """Number of regions of a jurisdiction, which may serve each other's requests."""
    report_age_s: float = 10.0
    """Age (s) of the reports that the planner uses."""
    faults: Faults = Faults()
    seed: int = 1


class WorldResult(msgspec.Struct):
    """Counts, latencies and processor time of a run."""

    requests: int = 0
    away: int = 0
    """Requests that another region served."""
    rerouted: int = 0
    """Requests that were sent to another region because a region had failed."""
    broken: int = 0
    """Requests that a region held when it failed."""
    unanswered: int = 0
    """Requests without a response when the run ended, other than `broken`."""
    events: int = 0
    cpu_s: float = 0.0
    planner_cpu_s: float = 0.0
    plans: int = 0
    ttft_p50_s: float = 0.0
    ttft_p99_s: float = 0.0
    e2e_p50_s: float = 0.0
    e2e_p99_s: float = 0.0


class _Site:
    """One region of a world."""

    def __init__(
        self, config: WorldConfig, name: str, permitted: ResidencyClass, clock: VirtualClock, seed: int
    ) -> None:
        kinds = [
            msgspec.structs.replace(kind, count=len(range(at, config.endpoints, len(CHAT_ENGINES))))
            for at, kind in enumerate(CHAT_ENGINES)
        ]
        fleet = partial(ChatFleet, model=CHAT_MODEL, cost=CHAT_COST, kinds=kinds, known_lengths=True)
        self.name = name
        self.permitted = permitted
        self.region: Region[TraceRequest] = Region(fleet, config.agents, seed, clock=clock)
        self.agents = [PenstockAgent(self.region, number, Queueing()) for number in range(config.agents)]
        self.region.set_agents(self.agents)
        self.slots = sum(kind.max_num_seqs for kind in self.region.fleet.kinds)
        self.rate = ArrivalRate(tuple(sorted(permitted.regions)))
        self.health = RegionHealth(RegionState.HEALTHY)
        """Health as observed by the other regions of the jurisdiction."""
        self.is_lost = False

    @property
    def load(self) -> int:
        """Requests at engines and in queues."""
        return sum(self.region.in_flight) + sum(len(agent.queue) for agent in self.agents)


class World:
    """All regions of a run."""

    def __init__(self, config: WorldConfig) -> None:
        """Create idle regions."""
        self.result = WorldResult()
        self._config = config
        self._clock = VirtualClock()
        self._rng = Random(config.seed)
        names = [f"region-{number:04}" for number in range(config.regions)]
        groups = [names[at : at + config.jurisdiction] for at in range(0, len(names), config.jurisdiction)]
        self._policy = _policy(names, config)
        self.sites = {
            name: _Site(config, name, permitted, self._clock, config.seed * config.regions + number)
            for number, (name, permitted) in enumerate(
                (name, residency_class(frozenset(group))) for group in groups for name in group
            )
        }
        self._groups = [[self.sites[name] for name in group] for group in groups]
        self._views: dict[str, dict[str, RegionView]] = {}
        self._planner: DelayedPlanner[None] = DelayedPlanner(
            self._policy, FlowPlanner(1.0), config.report_age_s, PLAN_INTERVAL_S
        )
        self._lengths = generate(LENGTHS_S, self._rng, Arrivals(20.0, rate_cv=0.0, dwell_s=LENGTHS_S))
        self._served: list[Served[TraceRequest]] = []

    def run(self) -> WorldResult:
        """Run until every request is answered, or DRAIN_S after the last arrival."""
        config, clock = self._config, self._clock
        began_s = time.process_time()
        self._probe()
        clock.at(PLAN_INTERVAL_S, self._tick)
        for site in self.sites.values():
            self._schedule_arrival(site)
        self._schedule_faults(config.seconds / 2)
        while not self._is_over():
            # The end condition reads every region, so it is evaluated once per second of the virtual clock.
            until = clock.now + 1.0
            while (at := clock.next_at) is not None and at <= until:
                clock.step()
                self.result.events += 1
            clock.now = until
        self.result.cpu_s = time.process_time() - began_s
        return self._summary()

    def _is_over(self) -> bool:
        now, end_s = self._clock.now, self._config.seconds
        if now <= end_s:
            return False
        return now > end_s + DRAIN_S or not any(site.load for site in self.sites.values() if not site.is_lost)

    def _schedule_arrival(self, site: _Site) -> None:
        config = self._config
        at = self._clock.now + self._rng.expovariate(config.rate_per_s / config.regions)
        if at < config.seconds:
            self._clock.at(at, partial(self._arrive, site))

    def _arrive(self, site: _Site) -> None:
        self._schedule_arrival(site)
        request = msgspec.structs.replace(self._rng.choice(self._lengths), at_s=self._clock.now)
        self.result.requests += 1
        entry = site
        if site.is_lost:
            # The client tries its next address: the nearest region that accepts connections.
            nearest = self._policy.nearest_first(site.name, site.permitted.regions)
            entry = next(other for name in nearest if not (other := self.sites[name]).is_lost)
            self.result.rerouted += 1
        entry.rate.arrived += 1
        server = self._choose(entry)
        if server.is_lost:
            # The connection fails, and the entry's agent chooses another region.
            self.result.rerouted += 1
            server = self._choose(entry, server.name)
        if server is entry:
            self._start(server, request)
        else:
            self.result.away += 1
            trip_s = self._policy.round_trip_ms(entry.name, server.name) / 1000
            self._clock.at(self._clock.now + trip_s, partial(self._start, server, request))

    def _choose(self, entry: _Site, without: str = "") -> _Site:
        plan = self._planner.plans.get(entry.name)
        views = self._views[entry.permitted.name]
        if without:
            views = {**views, without: RegionView(RegionState.FAILED, False, 0.0)}
        options = region_options(
            self._policy,
            plan.lookup(CHAT_MODEL, entry.permitted.name) if plan is not None else None,
            RegionRequest(entry.name, CHAT_MODEL, entry.permitted),
            views,
        )
        return entry if isinstance(options, Refusal) else self.sites[draw(options, self._rng).region]

    def _start(self, server: _Site, request: TraceRequest) -> None:
        self._served.append(server.region.arrive(request))

    def _schedule_faults(self, at: float) -> None:
        faults = self._config.faults
        for group in self._groups[: faults.lost_regions]:
            self._clock.at(at, partial(self._lose, group[0]))
        for site in self.sites.values():
            # The first engines are the fastest, so that their faults have the greatest effect.
            for index in range(faults.slow_engines):
                self._clock.at(at, partial(site.region.fleet.set_slowness, index, 10.0))
            for index in range(faults.slow_engines, faults.slow_engines + faults.cold_engines):
                for agent in site.agents:
                    agent.set_ready(index, ready=False)
                    self._clock.at(at, partial(agent.set_ready, index, ready=True))

    def _lose(self, site: _Site) -> None:
        site.is_lost = True
        self.result.broken += site.load
        site.region.stop()

    def _probe(self) -> None:
        """Update the health of each region, which all other regions of the jurisdiction observe equally."""
        now, failover = self._clock.now, self._policy.failover
        for group in self._groups:
            for site in group:
                site.health = observe(site.health, not site.is_lost, now, failover)
            self._views[group[0].permitted.name] = {
                site.name: RegionView(
                    site.health.state,
                    not site.is_lost,
                    site.health.weight(now, failover),
                    expected_wait_s(site.load, site.slots, SERVICE_S),
                    0,
                )
                for site in group
            }
        if now < self._config.seconds:
            self._clock.at(now + failover.probe_interval_s, self._probe)

    def _tick(self) -> None:
        """Record a report of every agent, and plan from the newest reports of at least the configured age."""
        now, count, reports = self._clock.now, self._config.endpoints, {}
        for name, site in self.sites.items():
            if site.is_lost:
                continue
            site.rate.settle(PLAN_INTERVAL_S, now)
            rows = (DemandReport(CHAT_MODEL, site.permitted.name, site.rate.regions, site.rate.per_s),)
            reports[name] = PoolReport(CHAT_MODEL, count, count, site.slots, site.load, SERVICE_S), rows
        health = {name: site.health for name, site in self.sites.items()}
        arrived = self._planner.report(reports, health, None, now)
        if arrived is not None:
            began_s = time.process_time()
            self._planner.plan(arrived[0], now)
            self.result.plans += 1
            self.result.planner_cpu_s += time.process_time() - began_s
        if now < self._config.seconds:
            self._clock.at(now + PLAN_INTERVAL_S, self._tick)

    def _summary(self) -> WorldResult:
        result = self.result
        first_s = [served.first_s for served in self._served if served.first_s is not None]
        end_s = [served.end_s for served in self._served if served.end_s is not None]
        result.unanswered = result.requests - len(end_s) - result.broken
        result.ttft_p50_s, result.ttft_p99_s = (quantile(first_s, part) or 0.0 for part in (0.5, 0.99))
        result.e2e_p50_s, result.e2e_p99_s = (quantile(end_s, part) or 0.0 for part in (0.5, 0.99))
        return result


def _policy(names: list[str], config: WorldConfig) -> Policy:
    """Return a policy whose jurisdictions are distributed over the world, with their regions around one place."""
    regions = {}
    for number, name in enumerate(names):
        group, member = divmod(number, config.jurisdiction)
        angle = 2 * pi * member / config.jurisdiction
        latitude = 50.0 * sin(group) + 5.0 * sin(angle)
        longitude = (group * 137.5) % 360.0 - 180.0 + 5.0 * cos(angle) / max(0.2, cos(radians(latitude)))
        regions[name] = PolicyRegion(name, "XX", latitude, (longitude + 180.0) % 360.0 - 180.0)
    return Policy(
        regions,
        {CHAT_MODEL: Model(CHAT_MODEL, SERVICE_S)},
        {},
        (),
        failover=Failover(),
        objective=Objective(survive_one_loss=False),
    )
