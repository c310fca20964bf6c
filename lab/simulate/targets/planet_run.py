"""Several regions on the virtual clock, with the product's planner, region selection and spill credits, or a baseline.

A region consists of slots. A running request occupies a slot for its service time. The planner and the baselines use
reports of a given age; regions probe each other at the product's interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from lab.simulate.baselines.regional import RegionalBalancer, RegionReport
from lab.simulate.clock import VirtualClock
from lab.simulate.delayed_planner import DelayedPlanner
from penstock.fleet.demand import ArrivalRate
from penstock.fleet.expected_wait import expected_wait_s, headroom_slots
from penstock.fleet.report import DemandReport, PoolReport
from penstock.fleet.snapshot import Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.planner import Planner
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import RegionRequest, RegionView, draw, region_options
from penstock.routing.spill_credits import Grants, HeldCredits, grant, wanted

MODEL = "m"
HEALTHY = RegionHealth(RegionState.HEALTHY)
TICK_S = 1.0
"""Interval (s) of reports and plans."""


class Arrival(msgspec.Struct, frozen=True):
    """A request: arrival time (s), origin region and service time (s)."""

    at_s: float
    origin: str
    service_s: float


class Behaviour(NamedTuple):
    """How the regions of a run are chosen."""

    report_age_s: float
    """Age (s) of the reports that planner and baselines use."""
    planner: Planner
    baseline: RegionalBalancer | None = None
    """Chooses regions instead of the plans; None uses plans."""
    credits: bool = True
    """Whether requests may spill over beyond the plan."""


class PlanetResult(msgspec.Struct):
    """The results of a run."""

    wait_s: float = 0.0
    """Sum (s) of the waits of all requests."""
    away: int = 0
    """Requests that another region served."""
    home_shares: list[tuple[float, float]] = []
    """Time (s) and home share (0-1) of the first region in each plan."""


class _Site:
    def __init__(self, slots: int, permitted: ResidencyClass) -> None:
        self.slots = slots
        self.in_flight = 0
        self.waiting: deque[Arrival] = deque()
        self.rate = ArrivalRate(tuple(sorted(permitted.regions)))
        self.grants = Grants()
        self.credits = HeldCredits()
        self.waits: dict[str, float] = {}
        """Expected wait (s) in each other region, from the last probe."""

    @property
    def load(self) -> int:
        return self.in_flight + len(self.waiting)


class PlanetRun:
    """One run of all regions."""

    def __init__(
        self,
        policy: Policy,
        slots: Mapping[str, int],
        permitted: ResidencyClass,
        behaviour: Behaviour,
        seed: int = 1,
    ) -> None:
        """Create idle regions.

        Args:
            policy: the policy of the plans, which a baseline replaces.
            slots: number of slots by region.
            permitted: the regions that may serve every request.
            behaviour: how regions are chosen.
        """
        self.clock = VirtualClock()
        self.result = PlanetResult()
        self._policy, self._permitted = policy, permitted
        self._sites = {name: _Site(count, permitted) for name, count in slots.items()}
        self._baseline, self._credits = behaviour.baseline, behaviour.credits
        self._rng = Random(seed)
        self._planner: DelayedPlanner[dict[str, RegionReport]] = DelayedPlanner(
            policy, behaviour.planner, behaviour.report_age_s, TICK_S
        )
        self._reports = {name: RegionReport(count, 0) for name, count in slots.items()}
        self._left = 0

    def run(self, arrivals: list[Arrival]) -> PlanetResult:
        """Run until the last request has completed."""
        self._left = len(arrivals)
        for arrival in arrivals:
            self.clock.at(arrival.at_s, partial(self._arrive, arrival))
        self.clock.at(TICK_S, self._tick)
        if self._baseline is None and self._credits:
            self.clock.at(self._policy.failover.probe_interval_s, self._probe)
        while self._left:
            self.clock.step()
        return self.result

    def _arrive(self, arrival: Arrival) -> None:
        site = self._sites[arrival.origin]
        site.rate.arrived += 1
        server = self._server(arrival.origin)
        target = self._sites[server]
        if server == arrival.origin and (site.in_flight >= site.slots or site.waiting):
            site.waiting.append(arrival)
            self._serve(server)
        elif target.in_flight < target.slots:
            self._start(arrival, server)
        else:
            target.waiting.append(arrival)

    def _server(self, origin: str) -> str:
        if self._baseline is not None:
            shares = self._baseline.shares(self._nearest(origin), self._reports)
            return self._rng.choices(list(shares), list(shares.values()))[0]
        return self._choice(origin, overflow=False) or origin

    def _choice(self, origin: str, *, overflow: bool) -> str | None:
        plan = self._planner.plans.get(origin)
        options = region_options(
            self._policy,
            plan.lookup(MODEL, self._permitted.name) if plan is not None else None,
            RegionRequest(origin, MODEL, self._permitted, overflow=overflow),
            self._views(origin),
        )
        if isinstance(options, Refusal):
            return None
        choice = draw(options, self._rng)
        if choice.spends_credit:
            site = self._sites[origin]
            site.credits = site.credits.spent(choice.region, MODEL)
        return choice.region

    def _views(self, origin: str) -> dict[str, RegionView]:
        home, views = self._sites[origin], {}
        for name in self._sites:
            wait_s = self._wait_s(home) if name == origin else home.waits.get(name, 0.0)
            credits = home.credits.available(name, MODEL, self.clock.now) if name != origin else 0
            views[name] = RegionView(RegionState.HEALTHY, True, 1.0, wait_s, credits)
        return views

    def _serve(self, name: str) -> None:
        """Start the waiting requests of a region, in the region or in others by spill credits."""
        site = self._sites[name]
        while site.waiting:
            server = name
            if site.in_flight >= site.slots:
                found = self._choice(name, overflow=True) if self._baseline is None and self._credits else None
                if found is None:
                    return
                server = found
            self._start(site.waiting.popleft(), server)

    def _start(self, arrival: Arrival, server: str) -> None:
        away = server != arrival.origin
        trip_s = self._policy.round_trip_ms(arrival.origin, server) / 1000 if away else 0.0
        self.result.wait_s += self.clock.now - arrival.at_s
        self.result.away += away
        self._sites[server].in_flight += 1
        self.clock.at(self.clock.now + trip_s + arrival.service_s, partial(self._end, server))

    def _end(self, server: str) -> None:
        self._sites[server].in_flight -= 1
        self._left -= 1
        self._serve(server)

    def _wait_s(self, site: _Site) -> float:
        return expected_wait_s(site.load, site.slots, self._service_s())

    def _service_s(self) -> float:
        return self._policy.models[MODEL].expected_service_s

    def _probe(self) -> None:
        """Every region reads the expected wait and requests spill credits of every other region."""
        spillover, now = self._policy.spillover, self.clock.now
        for origin, site in self._sites.items():
            lacking = wanted(
                site.load,
                site.slots,
                spillover.target_utilisation,
                self._service_s(),
                site.rate.per_s,
                spillover.credit_ttl_s,
            )
            for name, server in self._sites.items():
                if name != origin:
                    site.waits[name] = self._wait_s(server)
                    room = headroom_slots(server.load, server.slots, spillover.target_utilisation)
                    server.grants, given = grant(server.grants, origin, lacking, room, now, spillover.credit_ttl_s)
                    site.credits = site.credits.received(name, {MODEL: given}, now, spillover.credit_ttl_s)
            self._serve(origin)
        self.clock.at(now + self._policy.failover.probe_interval_s, self._probe)

    def _tick(self) -> None:
        now, reports = self.clock.now, {}
        for name, site in self._sites.items():
            site.rate.settle(TICK_S, now)
            pool = PoolReport(MODEL, 1, 1, site.slots, site.in_flight, self._service_s())
            rows = (DemandReport(MODEL, self._permitted.name, site.rate.regions, site.rate.per_s),)
            reports[name] = pool, rows
        also = {name: RegionReport(site.slots, site.load) for name, site in self._sites.items()}
        arrived = self._planner.report(reports, dict.fromkeys(self._sites, HEALTHY), also, now)
        if arrived is not None:
            snapshot, self._reports = arrived
            if self._baseline is None:
                self._plan(snapshot, now)
        self.clock.at(now + TICK_S, self._tick)

    def _plan(self, snapshot: Snapshot, now: float) -> None:
        self._planner.plan(snapshot, now)
        first = next(iter(self._sites))
        entry = self._planner.plans[first].lookup(MODEL, self._permitted.name)
        share = sum(arc.share for arc in entry.arcs if arc.server == first) if entry is not None else 1.0
        self.result.home_shares.append((now, share))

    def _nearest(self, origin: str) -> tuple[str, ...]:
        return self._policy.nearest_first(origin, self._permitted.regions)


class CentralRun(PlanetRun):
    """The clairvoyant bound: a global queue with exact knowledge of free slots; the nearest free region serves."""

    def _arrive(self, arrival: Arrival) -> None:
        self._sites[arrival.origin].waiting.append(arrival)
        self._dispatch()

    def _end(self, server: str) -> None:
        self._sites[server].in_flight -= 1
        self._left -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        while True:
            free = {name for name, site in self._sites.items() if site.in_flight < site.slots}
            heads = [(site.waiting[0].at_s, name) for name, site in self._sites.items() if site.waiting]
            if not free or not heads:
                return
            origin = min(heads)[1]
            server = next(name for name in self._nearest(origin) if name in free)
            self._start(self._sites[origin].waiting.popleft(), server)
