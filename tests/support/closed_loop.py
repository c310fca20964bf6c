"""A fleet in a closed loop on a virtual clock: a real planner, and simulated agents with the rules of real agents.

Requests, probes, reports and plans are events with delays. An agent's view of other regions comes from probes that take
half a round trip in each direction; the control plane's view comes from reports that may be late. All decisions are
made by Penstock's code: `decide`, `grant`, `wanted`, `observe`, `add_report`, `tick`, and the planner under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import ReportVerdict, Snapshot, add_report, settled, tick
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.planning.share_moves import Key
from penstock.policy.policy import Policy
from tests.support.closed_loop_site import Ended, Request, Site

ARRIVALS_S = 0.05
PROBE_S = 0.25
REPORT_S = 1.0
TICK_S = 0.5
PUBLISHED_S = 0.05
LOOK_S = 0.1


class Plan(Protocol):
    """The interface of a planner."""

    def __call__(
        self,
        policy: Policy,
        snapshot: Snapshot,
        previous: dict[str, RegionPlan],
        *,
        now: float,
        epoch: int,
        generation: int,
        elapsed_s: float,
    ) -> dict[str, RegionPlan]:
        """Return one slice for every region of the policy."""


class World(msgspec.Struct, frozen=True):
    """Inputs of the simulation."""

    policy: Policy
    slots: dict[str, int]
    """Slots by region, for the only model, "m"."""
    service_s: float
    rates: Callable[[float], Mapping[tuple[str, frozenset[str]], float]]
    """Requests per second at a time (s) by (home of the clients, permitted regions)."""
    up: Callable[[str, float], bool] = lambda region, at: True
    draw_s: Callable[[Random], float] | None = None
    """Draws the duration (s) of one request, with the mean `service_s`; None for a constant duration."""
    prior_s: float | None = None
    """Service time (s) that a started region assumes; None for `service_s`."""
    report_delay_s: Callable[[float], float] = lambda at: 0.0
    """Delay (s) of a report sent at a time; infinite for a lost report."""


class Tick(NamedTuple):
    """The plan after one tick of the planner."""

    at: float
    shares: dict[tuple[Key, str], float]
    health: dict[str, RegionState]


class Loop:
    """Runs a world with a planner and records the results."""

    def __init__(self, world: World, plan: Plan, seed: int = 1) -> None:
        self.world = world
        self.now = 0.0
        self.rng = Random(seed)
        self.lengths = Random(seed)
        """Separate generator, so that durations of requests are the same with every planner."""
        self.sites: dict[str, Site] = {}
        self.ended: list[Ended] = []
        self.ticks: list[Tick] = []
        self.plans: dict[str, RegionPlan] = {}
        self._changed_at: list[float] = []
        self._plan = plan
        self._snapshot = Snapshot()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._epochs = count(1)
        self._due: dict[tuple[str, frozenset[str]], float] = {}

    def run(self, until_s: float) -> Loop:
        """Run the simulation up to `until_s`."""
        if not self._events:
            for at, name in enumerate(self.world.policy.regions):
                self.after(0.0, lambda name=name: self._every(PROBE_S, lambda: self._with(name, Site.probe)))
                # Agents do not report at the same time.
                self.after(0.13 * at, lambda name=name: self._every(REPORT_S, lambda: self._report(name)))
                self.after(0.0, lambda name=name: self._every(LOOK_S, lambda: self._with(name, Site.look)))
            self._every(ARRIVALS_S, self._arrivals)
            self.after(0.03, lambda: self._every(TICK_S, self._tick))
        while self._events and self._events[0][0] <= until_s:
            self.now, _, act = heappop(self._events)
            act()
        return self

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Schedule `act` in `delay_s` seconds."""
        heappush(self._events, (self.now + delay_s, next(self._order), act))

    def one_way_s(self, origin: str, server: str) -> float:
        return self.world.policy.round_trip_ms(origin, server) / 2000

    # results

    def share(self, key: Key, server: str) -> list[tuple[float, float]]:
        """One share of the plan over time, as (time, share)."""
        return [(moment.at, moment.shares.get((key, server), 0.0)) for moment in self.ticks]

    def changed(self, from_s: float) -> int:
        """Number of ticks since `from_s` that changed a class of the plan."""
        return sum(at >= from_s for at in self._changed_at)

    def served_at_home(self, home: str, from_s: float, to_s: float) -> float:
        """Share of the requests of clients of `home` in a period that the region itself served."""
        asked = [request for request in self.ended if request.home == home and from_s <= request.came_at < to_s]
        return sum(request.served_by == home for request in asked) / max(1, len(asked))

    # events

    def _every(self, period_s: float, act: Callable[[], None]) -> None:
        act()
        self.after(period_s, lambda: self._every(period_s, act))

    def _with(self, name: str, act: Callable[[Site], None]) -> None:
        site = self.sites.get(name)
        if site is not None:
            act(site)

    def _arrivals(self) -> None:
        for name in self.world.policy.regions:
            self._live_or_die(name)
        for (home, permitted), per_s in self.world.rates(self.now).items():
            due = self._due.get((home, permitted), 0.0) + per_s * ARRIVALS_S
            self._due[home, permitted] = due - int(due)
            for _ in range(int(due)):
                request = Request(self.now, home, permitted)
                entry = next(self._entries(home, permitted), None)
                if entry is None:
                    self.ended.append(Ended(self.now, home, None, 0.0, False))
                else:
                    entry.arrives(request)

    def _entries(self, home: str, permitted: frozenset[str]) -> Iterator[Site]:
        """Entries of the clients of a region: home, then the nearest available regions."""
        order = self.world.policy.nearest_first(home, permitted)
        return (self.sites[name] for name in order if name in self.sites)

    def _live_or_die(self, name: str) -> None:
        site, up = self.sites.get(name), self.world.up(name, self.now)
        if up and site is None:
            self.sites[name] = Site(self, name, next(self._epochs), self.plans.get(name))
        elif not up and site is not None:
            site.alive = False
            del self.sites[name]

    def _report(self, name: str) -> None:
        site, delay_s = self.sites.get(name), self.world.report_delay_s(self.now)
        if site is not None:
            report = site.report()
            if delay_s < float("inf"):
                self.after(delay_s, lambda: self._take_in(report))

    def _take_in(self, report: AgentReport) -> None:
        self._snapshot, verdict = add_report(self._snapshot, report, self.now, self.world.policy)
        assert verdict in (ReportVerdict.ACCEPTED, ReportVerdict.OLD_SEQ, ReportVerdict.OLD_EPOCH)

    def _tick(self) -> None:
        policy = self.world.policy
        self._snapshot = tick(self._snapshot, self.now, policy)
        if not self.plans and not settled(self._snapshot, self.now, policy, 0.0):
            return
        before = {name: plan.classes for name, plan in self.plans.items()}
        self.plans = self._plan(
            policy,
            self._snapshot,
            self.plans,
            now=self.now,
            epoch=1,
            generation=len(self.ticks) + 1,
            elapsed_s=TICK_S,
        )
        if before != {name: plan.classes for name, plan in self.plans.items()}:
            self._changed_at.append(self.now)
        self.ticks.append(
            Tick(
                self.now,
                {
                    (Key(origin, class_plan.model, class_plan.residency), arc.server): arc.share
                    for origin, plan in self.plans.items()
                    for class_plan in plan.classes
                    for arc in class_plan.arcs
                },
                {name: self._snapshot.state(name) for name in policy.regions},
            )
        )
        for name, plan in self.plans.items():
            self.after(PUBLISHED_S, lambda name=name, plan=plan: self._with(name, lambda site: _apply_plan(site, plan)))


def _apply_plan(site: Site, plan: RegionPlan) -> None:
    site.plan = plan
