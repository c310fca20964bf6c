"""Three regions of batching engines on the virtual clock, whose demand peaks one after the other.

Every region keeps its requests while it has room. Requests that would wait leave it by the rule of the contender: the
product's spill credits with or without the sketches of prompt beginnings, SkyWalker's rule, or none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from lab.simulate.baseline_agent import SCRAPE_S, BaselineAgent
from lab.simulate.baselines.inference import SkyWalker, region_by_skywalker
from lab.simulate.clock import VirtualClock
from lab.simulate.fleets import CHAT_COST, CHAT_MODEL, ChatFleet, EngineKind
from lab.simulate.penstock_agent import PenstockAgent
from lab.simulate.region import Region, Served
from lab.traces.trace import TraceRequest
from penstock.fleet.demand import ArrivalRate
from penstock.fleet.expected_wait import expected_wait_s, headroom_slots
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import Model, Queueing
from penstock.policy.kinds.regions import Region as PolicyRegion
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.routing.affinity import SESSION_BIT
from penstock.routing.prefixes.hot_prefixes import HotPrefixes
from penstock.routing.prefixes.prefix_sketch import EMPTY, MAX_ENTRIES, Sketch, decode_sketch, encode_sketch, held_in
from penstock.routing.prefixes.region_prefixes import NOTHING_SPARED, spared_elsewhere
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import RegionRequest, RegionView, draw, region_options
from penstock.routing.spill_credits import Grants, HeldCredits, grant, wanted
from penstock.routing.spilled_sessions import SpilledSessions

PLACES: Final = {"us-east": (39.0, -77.5), "eu-de": (50.1, 8.7), "asia": (1.35, 103.8)}
PERMITTED: Final = residency_class(frozenset(PLACES))

SKETCH_S: Final = 2.0
"""Interval (s) of sketches, as of an agent."""


class Sent(msgspec.Struct, frozen=True):
    """A request and the region at which it arrives."""

    origin: str
    request: TraceRequest


def three_regions() -> Policy:
    """Return a policy with the three regions."""
    regions = {name: PolicyRegion(name, "XX", *place) for name, place in PLACES.items()}
    spillover = Spillover(margin_s=0.1, target_utilisation=0.9)
    return Policy(regions, {CHAT_MODEL: Model(CHAT_MODEL, 2.0)}, {}, (), spillover=spillover)


class RegionalRun(ABC):
    """One run of all regions; a subclass is a contender."""

    def __init__(self, kinds: tuple[EngineKind, ...], seed: int) -> None:
        """Create idle regions with these engines each."""
        self.clock = VirtualClock()
        self.policy = three_regions()
        self.served: list[Served[TraceRequest]] = []
        self.fleets: list[ChatFleet] = []
        self.away = 0
        """Requests that another region than their origin served."""
        self.rng = Random(seed)
        self.regions: dict[str, Region[TraceRequest]] = {}
        self.waiting: dict[str, deque[TraceRequest]] = {name: deque() for name in PLACES}
        self.slots = sum(kind.count * kind.max_num_seqs for kind in kinds)
        self._left = 0
        for number, name in enumerate(PLACES):
            fleet = partial(ChatFleet, model=CHAT_MODEL, cost=CHAT_COST, kinds=kinds, known_lengths=False)
            region: Region[TraceRequest] = Region(fleet, 1, seed * 10 + number, clock=self.clock)
            self.regions[name] = region
            assert isinstance(region.fleet, ChatFleet)
            self.fleets.append(region.fleet)

    def run(self, requests: Sequence[Sent]) -> None:
        """Send all requests, and run until the last response."""
        self._left = len(requests)
        for sent in requests:
            self.clock.at(sent.request.at_s, partial(self._arrive, sent))
        while self._left:
            self.clock.step()

    @abstractmethod
    def target(self, origin: str, request: TraceRequest) -> str | None:
        """Return the region that starts the first waiting request of an origin now; None: the request waits."""

    def started(self, origin: str, request: TraceRequest, server: str) -> None:
        """Record the region of a request."""
        return

    def arrived(self, origin: str) -> None:
        """Record an arrival."""
        return

    def serve(self, origin: str) -> None:
        """Start the waiting requests of an origin, in their order, as long as there is a target."""
        waiting = self.waiting[origin]
        while waiting and (server := self.target(origin, waiting[0])) is not None:
            request = waiting.popleft()
            self.started(origin, request, server)
            trip_s = self.policy.round_trip_ms(origin, server) / 1000 if server != origin else 0.0
            self.away += server != origin
            if trip_s:
                self.clock.at(self.clock.now + trip_s, partial(self._begin, server, request))
            else:
                self._begin(server, request)

    def load(self, name: str) -> int:
        """Return the requests that run or wait in a region."""
        return sum(self.regions[name].in_flight) + len(self.waiting[name])

    def _arrive(self, sent: Sent) -> None:
        self.arrived(sent.origin)
        self.waiting[sent.origin].append(sent.request)
        self.serve(sent.origin)

    def _begin(self, server: str, request: TraceRequest) -> None:
        self.served.append(self.regions[server].arrive(request, on_end=self._end))

    def _end(self) -> None:
        self._left -= 1
        for name in self.waiting:
            self.serve(name)


class GeoDnsRun(RegionalRun):
    """Penstock's agent in each region, and no traffic between regions."""

    def __init__(self, kinds: tuple[EngineKind, ...], seed: int) -> None:
        """As `RegionalRun`."""
        super().__init__(kinds, seed)
        self.agents: dict[str, PenstockAgent[TraceRequest]] = {}
        for name, region in self.regions.items():
            self.agents[name] = PenstockAgent(region, 0, Queueing())
            region.set_agents([self.agents[name]])

    def target(self, origin: str, request: TraceRequest) -> str | None:
        """As `RegionalRun.target`."""
        return origin if self.agents[origin].has_room else None


class SpilloverRun(GeoDnsRun):
    """Penstock: overflow on spill credits, with the sketches of other regions or without."""

    def __init__(self, kinds: tuple[EngineKind, ...], seed: int, *, sketches: bool) -> None:
        """As `RegionalRun`; `sketches`: whether regions publish sketches."""
        super().__init__(kinds, seed)
        self._rates = {name: ArrivalRate(tuple(PLACES)) for name in PLACES}
        self._grants = {name: Grants() for name in PLACES}
        self._credits = {name: HeldCredits() for name in PLACES}
        self._waits_s: dict[tuple[str, str], float] = {}
        self._hot = {name: HotPrefixes() for name in PLACES}
        self._sketches: dict[str, Sketch] = dict.fromkeys(PLACES, EMPTY)
        self._spilled = {name: SpilledSessions() for name in PLACES}
        self.clock.at(self.policy.failover.probe_interval_s, self._probe)
        if sketches:
            self.clock.at(SKETCH_S, self._publish)

    def arrived(self, origin: str) -> None:
        """As `RegionalRun.arrived`."""
        self._rates[origin].arrived += 1

    def target(self, origin: str, request: TraceRequest) -> str | None:
        """As `RegionalRun.target`."""
        agent, now = self.agents[origin], self.clock.now
        session = crc32(request.conversation.encode()) | SESSION_BIT
        stays_in = self._spilled[origin].region_of(session, now)
        if agent.has_room and not stays_in:
            return origin
        views = self._views(origin)
        spared_s: Mapping[str, float] = NOTHING_SPARED
        cached_s = 0.0
        if views[origin].expected_wait_s > 0.0:
            prefix, cached_s = self.regions[origin].fleet.prefix_keys(request), agent.spared_s(request)
            held = {name: held_in(self._sketches[name], prefix) for name in PLACES if name != origin}
            waits_s = {name: views[name].expected_wait_s for name in held}
            spared_s = spared_elsewhere(self.policy, origin, agent.prompt_work(request, CHAT_MODEL), held, waits_s)
        options = region_options(
            self.policy,
            None,
            RegionRequest(
                origin,
                CHAT_MODEL,
                PERMITTED,
                overflow=not agent.has_room,
                session=session,
                cached_s=cached_s,
                stays_in=stays_in,
                spared_s=spared_s,
            ),
            views,
        )
        if isinstance(options, Refusal):
            return None
        choice = draw(options, self.rng, session)
        if choice.spends_credit:
            self._credits[origin] = self._credits[origin].spent(choice.region, CHAT_MODEL)
            self._spilled[origin].spilled(session, choice.region, now)
        return choice.region

    def started(self, origin: str, request: TraceRequest, server: str) -> None:
        """As `RegionalRun.started`."""
        prefix = self.regions[server].fleet.prefix_keys(request)
        self._hot[server].sent(prefix, PERMITTED.regions, self.clock.now)

    def _views(self, origin: str) -> dict[str, RegionView]:
        views = {}
        for name in PLACES:
            wait_s = self._wait_s(name) if name == origin else self._waits_s.get((origin, name), 0.0)
            credits = self._credits[origin].available(name, CHAT_MODEL, self.clock.now) if name != origin else 0
            views[name] = RegionView(RegionState.HEALTHY, True, 1.0, wait_s, credits)
        return views

    def _wait_s(self, name: str) -> float:
        return expected_wait_s(self.load(name), self.slots, self.agents[name].service_s)

    def _probe(self) -> None:
        """Every region reads the expected wait and requests spill credits of every other region."""
        spillover, now = self.policy.spillover, self.clock.now
        for name, rate in self._rates.items():
            rate.settle(self.policy.failover.probe_interval_s, now)
            lacking = wanted(
                self.load(name),
                self.slots,
                spillover.target_utilisation,
                self.agents[name].service_s,
                rate.per_s,
                spillover.credit_ttl_s,
            )
            for server in PLACES:
                if server != name:
                    self._waits_s[name, server] = self._wait_s(server)
                    room = headroom_slots(self.load(server), self.slots, spillover.target_utilisation)
                    given_before = self._grants[server]
                    self._grants[server], given = grant(given_before, name, lacking, room, now, spillover.credit_ttl_s)
                    received = {CHAT_MODEL: given}
                    self._credits[name] = self._credits[name].received(server, received, now, spillover.credit_ttl_s)
        for name in PLACES:
            self.serve(name)
        self.clock.at(now + self.policy.failover.probe_interval_s, self._probe)

    def _publish(self) -> None:
        now = self.clock.now
        for name, hot in self._hot.items():
            keys = hot.hottest(name, MAX_ENTRIES, now)
            waits_s = {key: self.agents[name].holder_wait_s(key) for key in keys}
            held = {key: wait_s for key, wait_s in waits_s.items() if wait_s is not None}
            self._sketches[name] = decode_sketch(encode_sketch(held)) or EMPTY
        self.clock.at(now + SKETCH_S, self._publish)


class SkyWalkerRun(RegionalRun):
    """SkyWalker's rule: a region's balancer gives a request to its engine with the longest match among those without
    pending requests; while all have some, to the region with the longest match among those with such an engine (Xia et
    al., EuroSys 2026). The state of other regions is exact here.
    """

    def __init__(self, kinds: tuple[EngineKind, ...], seed: int) -> None:
        """As `RegionalRun`."""
        super().__init__(kinds, seed)
        self._balancers: dict[str, SkyWalker] = {}
        self._polls = False
        for name, region in self.regions.items():
            agent: BaselineAgent[TraceRequest] = BaselineAgent(region, 0, SkyWalker, shares_counts=False)
            region.set_agents([agent])
            balancer = agent.balancer
            assert isinstance(balancer, SkyWalker)
            self._balancers[name] = balancer

    def target(self, origin: str, request: TraceRequest) -> str | None:
        """As `RegionalRun.target`."""
        arrival = self.regions[origin].fleet.arrival(request)
        region = region_by_skywalker(origin, self._balancers, arrival, self.policy.nearest_first)
        if region is None and not self._polls:
            self._polls = True
            self.clock.at(self.clock.now + SCRAPE_S, self._poll)
        return region

    def _poll(self) -> None:
        self._polls = False
        for name in self.waiting:
            self.serve(name)
