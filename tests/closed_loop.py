"""A planet in a closed loop on a virtual clock: a real planner, and agents that decide by the rules of the live ones.

Requests, probes, reports and plans are events with delays. What an agent knows of others it knows from probes that were
half a round trip on the way each way; what the control plane knows, it knows from reports that may be late. Everything
that decides is `penstock`'s own: `decide`, `grant`, `wanted`, `observe`, `take_in`, `tick`, and the planner under test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from penstock.decision import decide
from penstock.demand import Rate
from penstock.load import expected_wait_s, headroom_slots, mean_with
from penstock.moves import Key
from penstock.plan import RegionPlan
from penstock.policy import Policy
from penstock.reasons import Reason, Refusal
from penstock.region_health import RegionHealth, RegionState, observe
from penstock.report import AgentReport, DemandReport, PeerReport, PoolReport
from penstock.residency import Mask, residency_class
from penstock.snapshot import Snapshot, Verdict, settled, take_in, tick
from penstock.spill import Grants, Wallet, grant, wanted
from penstock.where import RegionView

ARRIVALS_S = 0.05
PROBE_S = 0.25
REPORT_S = 1.0
TICK_S = 0.5
PUBLISHED_S = 0.05
LOOK_S = 0.1
LONGEST_WAIT_S = 30.0

UNKNOWN = RegionView(RegionState.UNKNOWN, ready=False)


class Plan(Protocol):
    """The door that every planner has."""

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
        """One slice for every region of the policy."""


class World(msgspec.Struct, frozen=True):
    """What happens to the planet; the rest follows."""

    policy: Policy
    slots: dict[str, int]
    """By region, for the one model that there is, "m"."""
    service_s: float
    rates: Callable[[float], Mapping[tuple[str, frozenset[str]], float]]
    """Requests per second at a time (s) by (home of the clients, permitted regions)."""
    up: Callable[[str, float], bool] = lambda region, at: True
    draw_s: Callable[[Random], float] | None = None
    """How long (s) one request runs, where they differ: drawn with the mean `service_s`."""
    prior_s: float | None = None
    """What a region that has just started takes for its service time (s); None: it knows."""
    report_delay_s: Callable[[float], float] = lambda at: 0.0
    """How long (s) a report made at this time is on its way; infinite where it is lost."""


class Ended(NamedTuple):
    """What became of a request."""

    came_at: float
    home: str
    served_by: str | None
    waited_s: float
    on_credit: bool


class Tick(NamedTuple):
    """The plan after one of the planner's ticks."""

    at: float
    shares: dict[tuple[Key, str], float]
    health: dict[str, RegionState]


class Request:
    __slots__ = ("came_at", "home", "on_credit", "permitted", "tried")

    def __init__(self, came_at: float, home: str, permitted: frozenset[str]) -> None:
        self.came_at, self.home = came_at, home
        self.permitted = residency_class(permitted)
        self.tried: dict[str, Reason] = {}
        self.on_credit = False


class Peer:
    """What one agent knows of another region."""

    __slots__ = ("answer", "health", "may_spend", "wallet")

    def __init__(self) -> None:
        self.health = RegionHealth()
        self.answer: tuple[bool, float] | None = None
        self.wallet = Wallet()
        self.may_spend = 0
        """Of the newest answer's credits; counted apart from the wallet, to check it."""


class Site:
    """One region with one agent, as long as it lives; a restart begins a new one."""

    def __init__(self, loop: Loop, region: str, epoch: int, plan: RegionPlan | None) -> None:
        self.loop, self.region, self.epoch = loop, region, epoch
        self.plan = plan
        self.alive = True
        self.seq = 0
        self.running = 0
        self.queue: deque[Request] = deque()
        self.completions = 0
        self.learnt_s = loop.world.prior_s or loop.world.service_s
        self.grants = Grants()
        self.rates: dict[str, Rate] = {}
        self.since = self.settled_at = loop.now
        self.peers = {name: Peer() for name in loop.world.policy.regions if name != region}

    @property
    def slots(self) -> int:
        return self.loop.world.slots[self.region]

    @property
    def in_flight(self) -> int:
        return self.running + len(self.queue)

    @property
    def wait_s(self) -> float:
        return expected_wait_s(self.in_flight, self.slots, self.loop.world.service_s)

    # requests

    def arrives(self, request: Request) -> None:
        """A client asks here."""
        rate = self.rates.get(request.permitted.name)
        if rate is None:
            rate = self.rates[request.permitted.name] = Rate(tuple(sorted(request.permitted.regions)))
        rate.arrived += 1
        if not self.place(request):
            self.queue.append(request)

    def place(self, request: Request, *, its_turn: bool = False) -> bool:
        """Steps 6 and 7 of the road; False: it has to wait here."""
        loop = self.loop
        while True:
            views = {name: self.view(name) for name in request.permitted.regions}
            decision = decide(
                loop.world.policy,
                self.plan,
                self.region,
                "m",
                Mask(request.permitted),
                views,
                loop.rng,
                tried=request.tried,
                overflow=request.tried.get(self.region) is Reason.SATURATED,
            )
            if isinstance(decision, Refusal):
                return False
            where = decision.where
            if where.region == self.region:
                if self.running < self.slots and (its_turn or not self.queue):
                    self.start(request)
                    return True
                request.tried[self.region] = Reason.SATURATED
                continue
            if where.spends_credit:
                peer = self.peers[where.region]
                peer.wallet = peer.wallet.spent(where.region, "m")
                peer.may_spend -= 1
                assert peer.may_spend >= 0, f"{self.region} pushed {where.region} over what it granted"
            request.on_credit = where.spends_credit
            loop.after(loop.one_way_s(self.region, where.region), partial(self.reaches, request, where.region))
            return True

    def reaches(self, request: Request, server: str) -> None:
        """A forwarded request is there: it starts, or comes back as refused before it started."""
        there = self.loop.sites.get(server)
        if there is not None and there.running < there.slots:
            there.start(request)
            return
        reason = Reason.UNREACHABLE if there is None else Reason.SATURATED
        if there is None:
            self.missed(server)
        self.loop.after(self.loop.one_way_s(self.region, server), lambda: self.again(request, server, reason))

    def again(self, request: Request, server: str, reason: Reason) -> None:
        request.tried[server] = reason
        if not self.place(request):
            self.queue.append(request)

    def start(self, request: Request) -> None:
        loop = self.loop
        self.running += 1
        loop.ended.append(
            Ended(request.came_at, request.home, self.region, loop.now - request.came_at, request.on_credit)
        )
        runs_s = loop.world.draw_s(loop.lengths) if loop.world.draw_s is not None else loop.world.service_s
        loop.after(runs_s, lambda: self.finish(runs_s))

    def finish(self, ran_s: float) -> None:
        self.running -= 1
        self.learnt_s = mean_with(self.learnt_s, self.completions, ran_s)
        self.completions += 1
        self.look()

    def look(self) -> None:
        """Offer room that has appeared to those who wait, first come first served."""
        for _ in range(len(self.queue)):
            request = self.queue[0]
            if self.loop.now - request.came_at > LONGEST_WAIT_S:
                self.loop.ended.append(Ended(request.came_at, request.home, None, LONGEST_WAIT_S, False))
                self.queue.popleft()
                continue
            request.tried = {
                name: why
                for name, why in request.tried.items()
                if why is not Reason.SATURATED
                or (name == self.region and self.running >= self.slots)
                or (name != self.region and self.view(name).credits == 0)
            }
            if not self.place(request, its_turn=True):
                return
            self.queue.popleft()

    # what it knows

    def view(self, region: str) -> RegionView:
        if region == self.region:
            return RegionView(RegionState.HEALTHY, ready=True, expected_wait_s=self.wait_s)
        peer, now = self.peers[region], self.loop.now
        ready, wait_s = peer.answer or (False, 0.0)
        return RegionView(
            peer.health.state,
            ready,
            peer.health.weight(now, self.loop.world.policy.failover),
            wait_s,
            peer.wallet.available(region, "m", now),
        )

    def probe(self) -> None:
        loop, spillover = self.loop, self.loop.world.policy.spillover
        asks = wanted(
            self.in_flight,
            self.slots,
            spillover.target_utilisation,
            loop.world.service_s,
            sum(rate.per_s for rate in self.rates.values()),
            spillover.credit_ttl_s,
        )
        for name in self.peers:
            loop.after(loop.one_way_s(self.region, name), lambda name=name: self.asked(name, asks))

    def asked(self, region: str, asks: int) -> None:
        """The probe has arrived there."""
        loop = self.loop
        there = loop.sites.get(region)
        if there is None:
            loop.after(loop.world.policy.failover.probe_timeout_s, lambda: self.missed(region))
            return
        given = there.grants_to(self.region, asks)
        answer = (True, there.wait_s)
        loop.after(loop.one_way_s(region, self.region), lambda: self.heard(region, answer, given))

    def grants_to(self, origin: str, asks: int) -> int:
        loop, spillover = self.loop, self.loop.world.policy.spillover
        headroom = headroom_slots(self.in_flight, self.slots, spillover.target_utilisation)
        self.grants, given = grant(self.grants, origin, asks, headroom, loop.now, spillover.credit_ttl_s)
        assert self.grants.outstanding(loop.now) <= max(headroom, self.grants.outstanding(loop.now, besides=origin))
        return given

    def heard(self, region: str, answer: tuple[bool, float], given: int) -> None:
        if not self.alive:
            return
        loop, peer = self.loop, self.peers[region]
        peer.answer = answer
        peer.wallet = peer.wallet.received(region, "m", given, loop.now, loop.world.policy.spillover.credit_ttl_s)
        peer.may_spend = given
        peer.health = observe(peer.health, True, loop.now, loop.world.policy.failover)

    def missed(self, region: str) -> None:
        peer = self.peers[region]
        peer.answer = None
        if peer.health.state is not RegionState.UNKNOWN:
            peer.health = observe(peer.health, False, self.loop.now, self.loop.world.policy.failover)

    def report(self) -> AgentReport:
        loop, self.seq = self.loop, self.seq + 1
        elapsed_s = loop.now - self.settled_at
        if elapsed_s > 0.0:
            for rate in self.rates.values():
                rate.settle(elapsed_s, loop.now - self.since)
            self.settled_at = loop.now
        return AgentReport(
            self.region,
            "1",
            self.epoch,
            self.seq,
            loop.now,
            (PoolReport("m", 1, 1, self.slots, self.in_flight, self.learnt_s, self.completions),),
            tuple(DemandReport("m", name, rate.regions, rate.per_s) for name, rate in self.rates.items()),
            tuple(PeerReport(name, peer.health.state, 0.0) for name, peer in self.peers.items()),
        )


class Loop:
    """Runs a world under a planner; what it recorded is read afterwards."""

    def __init__(self, world: World, plan: Plan, seed: int = 1) -> None:
        self.world = world
        self.now = 0.0
        self.rng = Random(seed)
        self.lengths = Random(seed)
        """Apart from what decisions draw, so that the same requests are as long under another plan."""
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
        """Let time pass up to `until_s`."""
        if not self._events:
            for at, name in enumerate(self.world.policy.regions):
                self.after(0.0, lambda name=name: self._every(PROBE_S, lambda: self._with(name, Site.probe)))
                # Agents report out of step.
                self.after(0.13 * at, lambda name=name: self._every(REPORT_S, lambda: self._report(name)))
                self.after(0.0, lambda name=name: self._every(LOOK_S, lambda: self._with(name, Site.look)))
            self._every(ARRIVALS_S, self._arrivals)
            self.after(0.03, lambda: self._every(TICK_S, self._tick))
        while self._events and self._events[0][0] <= until_s:
            self.now, _, act = heappop(self._events)
            act()
        return self

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something `delay_s` seconds from now."""
        heappush(self._events, (self.now + delay_s, next(self._order), act))

    def one_way_s(self, origin: str, server: str) -> float:
        return self.world.policy.round_trip_ms(origin, server) / 2000

    # what was seen

    def share(self, key: Key, server: str) -> list[tuple[float, float]]:
        """One share of the plan, as (time, share)."""
        return [(one.at, one.shares.get((key, server), 0.0)) for one in self.ticks]

    def changed(self, from_s: float) -> int:
        """How many ticks since a time changed any class of the plan."""
        return sum(at >= from_s for at in self._changed_at)

    def served_at_home(self, home: str, from_s: float, to_s: float) -> float:
        """The part of the requests of a region's clients, of those that came in a time, that it served itself."""
        asked = [one for one in self.ended if one.home == home and from_s <= one.came_at < to_s]
        return sum(one.served_by == home for one in asked) / max(1, len(asked))

    # what happens

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
        """Where clients of a region go: home, else the nearest that answers them."""
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
        self._snapshot, verdict = take_in(self._snapshot, report, self.now, self.world.policy)
        assert verdict in (Verdict.ACCEPTED, Verdict.OLD_SEQ, Verdict.OLD_EPOCH)

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
                    (Key(origin, one.model, one.residency), arc.server): arc.share
                    for origin, plan in self.plans.items()
                    for one in plan.classes
                    for arc in one.arcs
                },
                {name: self._snapshot.state(name) for name in policy.regions},
            )
        )
        for name, plan in self.plans.items():
            self.after(PUBLISHED_S, lambda name=name, plan=plan: self._with(name, lambda site: _obey(site, plan)))


def _obey(site: Site, plan: RegionPlan) -> None:
    site.plan = plan
