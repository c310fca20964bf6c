"""The regions of the closed loop: one simulated agent each, with the queueing and spillover rules of real agents."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.fleet.demand import ArrivalRate
from penstock.fleet.expected_wait import expected_wait_s, headroom_slots, mean_with
from penstock.fleet.report import AgentReport, DemandReport, PeerReport, PoolReport
from penstock.health.region_health import RegionHealth, RegionState, observe
from penstock.planning.plan import RegionPlan
from penstock.policy.residency import Mask, residency_class
from penstock.routing.decision import decide
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionRequest, RegionView
from penstock.routing.spill_credits import Grants, HeldCredits, grant, wanted

if TYPE_CHECKING:
    from tests.support.closed_loop import Loop

MAX_WAIT_S = 30.0

UNKNOWN = RegionView(RegionState.UNKNOWN, ready=False)


class Ended(NamedTuple):
    """Outcome of a request."""

    came_at: float
    home: str
    served_by: str | None
    waited_s: float
    on_credit: bool


class Request:
    __slots__ = ("came_at", "home", "on_credit", "permitted", "tried")

    def __init__(self, came_at: float, home: str, permitted: frozenset[str]) -> None:
        self.came_at, self.home = came_at, home
        self.permitted = residency_class(permitted)
        self.tried: dict[str, Reason] = {}
        self.on_credit = False


class Peer:
    """An agent's view of another region."""

    __slots__ = ("answer", "health", "held_credits", "may_spend")

    def __init__(self) -> None:
        self.health = RegionHealth()
        self.answer: tuple[bool, float] | None = None
        self.held_credits = HeldCredits()
        self.may_spend = 0
        """Remaining credits of the newest probe response, counted independently to check `held_credits`."""


class Site:
    """One region with one agent, from start to failure; a restart creates a new Site."""

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
        self.rates: dict[str, ArrivalRate] = {}
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
        """A client's request arrives at this region."""
        rate = self.rates.get(request.permitted.name)
        if rate is None:
            rate = self.rates[request.permitted.name] = ArrivalRate(tuple(sorted(request.permitted.regions)))
        rate.arrived += 1
        if not self.place(request):
            self.queue.append(request)

    def place(self, request: Request, *, its_turn: bool = False) -> bool:
        """Run steps 6 and 7 of the request path; False if the request must wait in this region."""
        loop = self.loop
        while True:
            views = {name: self.view(name) for name in request.permitted.regions}
            is_full = request.tried.get(self.region) is Reason.SATURATED
            wanted = RegionRequest(self.region, "m", request.permitted, request.tried, is_full)
            decision = decide(loop.world.policy, self.plan, Mask(request.permitted), wanted, views, loop.rng)
            if isinstance(decision, Refusal):
                return False
            where = decision.choice
            if where.region == self.region:
                if self.running < self.slots and (its_turn or not self.queue):
                    self.start(request)
                    return True
                request.tried[self.region] = Reason.SATURATED
                continue
            if where.spends_credit:
                peer = self.peers[where.region]
                peer.held_credits = peer.held_credits.spent(where.region, "m")
                peer.may_spend -= 1
                assert peer.may_spend >= 0, f"{self.region} sent {where.region} more spillover than granted"
            request.on_credit = where.spends_credit
            loop.after(loop.one_way_s(self.region, where.region), partial(self.reaches, request, where.region))
            return True

    def reaches(self, request: Request, server: str) -> None:
        """A forwarded request arrives at `server`, which starts or rejects it."""
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
        """Place waiting requests, in order of arrival, while slots or credits are available."""
        for _ in range(len(self.queue)):
            request = self.queue[0]
            if self.loop.now - request.came_at > MAX_WAIT_S:
                self.loop.ended.append(Ended(request.came_at, request.home, None, MAX_WAIT_S, False))
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

    # view of other regions

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
            peer.held_credits.available(region, "m", now),
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
        """A probe arrives at `region`."""
        loop = self.loop
        there = loop.sites.get(region)
        if there is None:
            loop.after(loop.world.policy.failover.probe_timeout_s, lambda: self.missed(region))
            return
        given = there.grants_to(self.region, asks)
        answer = (True, there.wait_s)
        loop.after(loop.one_way_s(region, self.region), lambda: self.on_probe_answer(region, answer, given))

    def grants_to(self, origin: str, asks: int) -> int:
        loop, spillover = self.loop, self.loop.world.policy.spillover
        headroom = headroom_slots(self.in_flight, self.slots, spillover.target_utilisation)
        self.grants, given = grant(self.grants, origin, asks, headroom, loop.now, spillover.credit_ttl_s)
        assert self.grants.outstanding(loop.now) <= max(headroom, self.grants.outstanding(loop.now, besides=origin))
        return given

    def on_probe_answer(self, region: str, answer: tuple[bool, float], given: int) -> None:
        if not self.alive:
            return
        loop, peer = self.loop, self.peers[region]
        peer.answer = answer
        ttl_s = loop.world.policy.spillover.credit_ttl_s
        peer.held_credits = peer.held_credits.received(region, {"m": given}, loop.now, ttl_s)
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
