"""A day of four regions with diurnal demand, and a batch in one of them that never ends: what the idle slots are worth.

The regions have the demand of a production service, each shifted by its longitude (`scaling_week`). Requests of clients
overflow on spill credits, requests of the batch run in the cheapest region with idle slots, by the product's functions
(`batch_placement`, `spill_credits`, `batch_preemption`). A region consists of slots. With preemption, a request of a
client that finds no slot ends the youngest running request of the batch, which then runs again from its beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np

from lab.simulate.batch_day_results import BatchDay, Bounds
from lab.simulate.clock import VirtualClock
from lab.simulate.scaling_week import LONGITUDES, MEAN_PER_S, STEP_S, STEPS_A_WEEK, demand_of
from penstock.admission.batch_preemption import (
    MAX_PREEMPTIONS,
    AgentBatch,
    RunningRequest,
    first_to_end,
    preemptions_of,
)
from penstock.fleet.demand import ArrivalRate
from penstock.fleet.expected_wait import expected_wait_s, headroom_slots
from penstock.health.region_health import RegionState
from penstock.policy.gpu_price import gpu_price
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import PriceHours, Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.routing.batch_placement import batch_options
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import NO_CLOSURES, RegionRequest, RegionView, region_options
from penstock.routing.spill_credits import BATCH_RESERVE, Grants, HeldCredits, batch_headroom, grant, wanted

MODEL: Final = "m"
SLOTS: Final = 48
"""Slots of each region."""

SLOTS_PER_GPU: Final = 8
SERVICE_S: Final = 30.0
"""Mean time (s) for which a request holds its slot; exponential."""

MEAN_USE: Final = 0.45
"""Mean part (0-1) of the slots that requests of clients occupy."""

HOME: Final = "europe"
"""The region of the batch."""

CONCURRENCY: Final = 256
"""Requests of the batch that run or wait at a time, enough for all slots."""

NIGHT_PRICE: Final = 0.6
"""Price of a GPU hour from 22:00 to 06:00 of a region, relative to that at other times."""

EVERYWHERE: Final = residency_class(frozenset(LONGITUDES))


def day_policy(target: float) -> Policy:
    """Return a policy with the four regions, which are cheaper at night."""
    regions = {
        name: Region(
            name,
            "XX",
            10.0,
            longitude,
            cost_per_gpu_hour=1.0,
            price_hours=(PriceHours(NIGHT_PRICE, *_night(longitude)),),
        )
        for name, longitude in LONGITUDES.items()
    }
    model = Model(MODEL, SERVICE_S)
    return Policy(regions, {MODEL: model}, {}, (), spillover=Spillover(target_utilisation=target))


def _night(longitude: float) -> tuple[int, int]:
    """The hours (UTC) at which a local night begins and ends."""
    shift = round(longitude / 15.0)
    return (22 - shift) % 24, (6 - shift) % 24 or 24


class Client(NamedTuple):
    """A request of a client."""

    arrived_at: float
    service_s: float
    trip_s: float = 0.0
    """Time (s) of its trip to another region."""


class _Item:
    """A request of the batch."""

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s
        self.preemptions = 0
        self.since = 0.0
        """Time (s) at which it started."""
        self.runs = 0


class _Site:
    """One region during a run."""

    def __init__(self) -> None:
        self.clients = 0
        """Requests of clients that run."""
        self.batch: list[_Item] = []
        """Requests of the batch that run."""
        self.preempts = False
        self.waiting: deque[Client] = deque()
        self.waits_s: dict[str, float] = {}
        """Expected waits (s) of the other regions, as of the last probe."""
        self.uses: dict[str, int] = {}
        """Slots of the other regions in use, as of the last probe and by what was sent since."""
        self.rate = ArrivalRate(tuple(LONGITUDES))
        self.grants, self.batch_grants = Grants(), Grants()
        self.credits, self.batch_credits = HeldCredits(), HeldCredits()

    @property
    def running(self) -> int:
        return self.clients + len(self.batch)

    @property
    def load(self) -> int:
        return self.running + len(self.waiting)

    @property
    def preemptible(self) -> list[_Item]:
        return [item for item in self.batch if item.preemptions < MAX_PREEMPTIONS] if self.preempts else []

    @property
    def load_of_clients(self) -> int:
        """The load without what ends for a client's request."""
        return self.load - len(self.preemptible)

    @property
    def wait_s(self) -> float:
        return expected_wait_s(self.load_of_clients, SLOTS, SERVICE_S)


class DayRun:
    """One run."""

    def __init__(self, bounds: Bounds, *, with_batch: bool, seed: int = 1) -> None:
        """Create idle regions. The demand of clients is the same with and without a batch."""
        self.clock = VirtualClock()
        self.sites = {name: _Site() for name in LONGITUDES}
        self.waits_s: list[float] = []
        """Time (s) that each client's request waited for a slot."""
        self.responses_s: list[float] = []
        self.clients_s = self.batch_s = self.lost_s = self.paid = 0.0
        """Slot time (s) of clients, batch and preempted runs within the run, and the price of the latter two in GPU
        seconds by day."""
        self.started = self.away = self.returned = self.preempted = 0
        """Requests of the batch that were sent to a slot, those of them in other regions, those that came back, and
        those that were preempted."""
        self._preempts, self._patience_s = bounds.preempts, bounds.patience * SERVICE_S
        for site in self.sites.values():
            site.preempts = bounds.preempts
        self._policy = day_policy(bounds.target)
        self._max_use = bounds.max_use
        self._rng, self._batch_rng = Random(seed), Random(seed + 1)
        self._queued = [self._new_item() for _ in range(CONCURRENCY if with_batch else 0)]
        """Requests of the batch that wait, the next one last; each that ends is followed by another one."""
        self._until = 0.0

    def run(self, demand: Mapping[str, Sequence[float]]) -> None:
        """Run the demand (requests/s, for each step of STEP_S)."""
        self._until = len(demand[HOME]) * STEP_S
        for name, rates in demand.items():
            for step, per_s in enumerate(rates):
                at = step * STEP_S
                while per_s > 0.0 and (at := at + self._rng.expovariate(per_s)) < (step + 1) * STEP_S:
                    client = Client(at, self._rng.expovariate(1.0 / SERVICE_S))
                    self.clock.at(at, partial(self._arrive, name, client))
        self.clock.at(0.0, self._probe)
        while (next_at := self.clock.next_at) is not None and next_at < self._until:
            self.clock.step()
        for site in self.sites.values():
            self.batch_s += sum(self._until - item.since for item in site.batch)

    def result(self, name: str) -> BatchDay:
        """Return the results after the run."""
        idle_s = len(LONGITUDES) * SLOTS * self._until - self.clients_s
        gpu_s, runs = self.batch_s / SLOTS_PER_GPU, self.started - self.returned
        return BatchDay(
            name,
            idle_used_share=self.batch_s / idle_s,
            batch_gpu_hours=gpu_s / 3600.0,
            batch_requests=runs - self.preempted,
            away_share=(self.away - self.returned) / max(1, runs),
            mean_price=self.paid / max(1e-9, gpu_s),
            returned=self.returned,
            preempted=self.preempted,
            lost_share=self.lost_s / idle_s,
            wait_p99_s=float(np.quantile(self.waits_s, 0.99)),
            response_p99_s=float(np.quantile(self.responses_s, 0.99)),
        )

    # requests of clients

    def _arrive(self, origin: str, client: Client) -> None:
        site = self.sites[origin]
        site.rate.arrived += 1
        site.waiting.append(client)
        self._serve(origin)

    def _serve(self, origin: str) -> None:
        """Start the requests of clients that wait in a region, here or elsewhere, and then those of the batch."""
        site = self.sites[origin]
        while site.waiting:
            since = site.waiting[0].arrived_at
            is_patient = self.clock.now >= since + self._patience_s
            server: str | None = origin
            if site.running >= SLOTS and not self._preempt(site, is_patient=is_patient):
                server = self._overflow(origin) if is_patient or not site.preemptible else None
            if server is None:
                if not is_patient:
                    self.clock.at(since + self._patience_s, partial(self._serve, origin))
                break
            self._start(origin, server, site.waiting.popleft())
        self._place_batch()

    def _overflow(self, origin: str) -> str | None:
        site, now = self.sites[origin], self.clock.now
        views = {
            name: RegionView(RegionState.HEALTHY, True, 1.0, site.waits_s.get(name, 0.0), self._credits(site, name))
            for name in self.sites
        }
        views[origin] = RegionView(RegionState.HEALTHY, True, 1.0, site.wait_s)
        options = region_options(
            self._policy, None, RegionRequest(origin, MODEL, EVERYWHERE, overflow=True), views, NO_CLOSURES
        )
        if isinstance(options, Refusal):
            return None
        server = options[0].choice.region
        assert site.credits.available(server, MODEL, now) > 0
        site.credits = site.credits.spent(server, MODEL)
        return server

    def _credits(self, site: _Site, server: str) -> int:
        return site.credits.available(server, MODEL, self.clock.now)

    def _start(self, origin: str, server: str, client: Client) -> None:
        now, trip_s = self.clock.now, client.trip_s + self._trip_s(origin, server)
        if server != origin and self.sites[server].running >= SLOTS:
            is_patient = now >= client.arrived_at + self._patience_s
            if not self._preempt(self.sites[server], is_patient=is_patient) and self.sites[server].preemptible:
                self.sites[server].waiting.append(client._replace(trip_s=trip_s))
                self.clock.at(now + trip_s, partial(self._serve, server))
                return
        self.waits_s.append(now - client.arrived_at)
        self.responses_s.append(now - client.arrived_at + trip_s + client.service_s)
        self.clients_s += min(client.service_s, max(0.0, self._until - now))
        self.sites[server].clients += 1
        self.clock.at(now + trip_s + client.service_s, partial(self._client_ends, server))

    def _client_ends(self, server: str) -> None:
        self.sites[server].clients -= 1
        self._serve(server)

    # requests of the batch

    def _room(self, site: _Site) -> int:
        """The idle slots of a region, as its agent counts them."""
        if site.waiting:
            return 0
        promised = 0 if self._preempts else site.grants.outstanding(self.clock.now)
        return ceil(self._max_use * SLOTS) - site.running - promised

    def _place_batch(self) -> None:
        home, now = self.sites[HOME], self.clock.now
        while self._queued:
            views = {
                name: RegionView(
                    RegionState.HEALTHY,
                    True,
                    batch_room=home.batch_credits.available(name, MODEL, now),
                    slots=SLOTS,
                    in_use=home.uses.get(name, 0),
                )
                for name in self.sites
            }
            views[HOME] = RegionView(RegionState.HEALTHY, True, batch_room=self._room(home))
            if not any(view.batch_room > 0 for view in views.values()):
                return
            request = RegionRequest(HOME, MODEL, EVERYWHERE, batch_at=now, max_use=self._max_use)
            options = batch_options(self._policy, request, views, NO_CLOSURES)
            if isinstance(options, Refusal):
                return
            server = options[0].choice.region
            item = self._queued.pop()
            self.started += 1
            if server == HOME:
                self._begin_batch(server, item)
            else:
                self.away += 1
                home.uses[server] += 1
                home.batch_credits = home.batch_credits.spent(server, MODEL)
                self.clock.at(now + self._trip_s(HOME, server), partial(self._batch_arrives, server, item))

    def _new_item(self) -> _Item:
        return _Item(self._batch_rng.expovariate(1.0 / SERVICE_S))

    def _batch_arrives(self, server: str, item: _Item) -> None:
        if self._room(self.sites[server]) > 0:
            self._begin_batch(server, item)
            return
        self.returned += 1
        self.clock.at(self.clock.now + self._trip_s(server, HOME), partial(self._batch_returns, item))

    def _begin_batch(self, server: str, item: _Item) -> None:
        now, item.runs = self.clock.now, item.runs + 1
        item.since = now
        self.sites[server].batch.append(item)
        self.clock.at(now + item.service_s, partial(self._batch_ends, server, item, item.runs))

    def _batch_ends(self, server: str, item: _Item, run: int) -> None:
        site = self.sites[server]
        if item.runs != run or item not in site.batch:
            return
        site.batch.remove(item)
        self.batch_s += item.service_s
        self._pay(server, item)
        self._queued.insert(0, self._new_item())
        self._serve(server)

    def _pay(self, server: str, item: _Item) -> None:
        held_s = self.clock.now - item.since
        self.paid += held_s / SLOTS_PER_GPU * gpu_price(self._policy, server, MODEL, item.since)

    def _preempt(self, site: _Site, *, is_patient: bool) -> bool:
        """End the youngest request of the batch in a full region; False if there is none that may end now."""
        may_end = site.preemptible
        need = AgentBatch("", 1, len(may_end), int(is_patient))
        running = [RunningRequest(item.since, number) for number, item in enumerate(may_end)]
        preemptions = preemptions_of("", [need], SLOTS - site.running)
        for number in first_to_end(running, preemptions, self.clock.now, self._patience_s):
            item = may_end[number]
            site.batch.remove(item)
            item.preemptions += 1
            self.preempted += 1
            self.lost_s += self.clock.now - item.since
            server = next(name for name, each in self.sites.items() if each is site)
            self._pay(server, item)
            self.clock.at(self.clock.now + self._trip_s(server, HOME), partial(self._batch_returns, item))
            return True
        return False

    def _batch_returns(self, item: _Item) -> None:
        self._queued.append(item)
        self._place_batch()

    # credits

    def _probe(self) -> None:
        """Every region reads the expected waits of the others, and requests credits of them."""
        now, spillover = self.clock.now, self._policy.spillover
        interval_s, ttl_s = self._policy.failover.probe_interval_s, self._policy.spillover.credit_ttl_s
        for origin, site in self.sites.items():
            site.rate.settle(interval_s, now + interval_s)
            lacking = wanted(
                site.load_of_clients, SLOTS, spillover.target_utilisation, SERVICE_S, site.rate.per_s, ttl_s
            )
            # Each request of the batch that ends is followed by another one: about one for each SERVICE_S and slot.
            for_batch = 0
            if origin == HOME and self._queued:
                for_batch = len(self._queued) + ceil(CONCURRENCY / SERVICE_S * ttl_s)
            for name, server in self.sites.items():
                if name == origin:
                    continue
                site.waits_s[name] = server.wait_s
                if lacking or (name, MODEL) in site.credits.credits:
                    room = headroom_slots(server.load_of_clients, SLOTS, spillover.target_utilisation)
                    server.grants, given = grant(server.grants, origin, lacking, room, now, ttl_s)
                    site.credits = site.credits.received(name, {MODEL: given}, now, ttl_s)
                promised = 0 if self._preempts else server.grants.outstanding(now)
                site.uses[name] = server.load + promised
                if for_batch or (name, MODEL) in site.batch_credits.credits:
                    reserve = 0 if self._patience_s else BATCH_RESERVE
                    room = headroom_slots(server.load + reserve, SLOTS, spillover.target_utilisation)
                    room = batch_headroom(room, promised, 0)
                    server.batch_grants, given = grant(server.batch_grants, origin, for_batch, room, now, ttl_s)
                    site.batch_credits = site.batch_credits.received(name, {MODEL: given}, now, ttl_s)
        for origin, site in self.sites.items():
            if site.waiting or origin == HOME:
                self._serve(origin)
        self.clock.at(now + interval_s, self._probe)

    def _trip_s(self, origin: str, server: str) -> float:
        return self._policy.round_trip_ms(origin, server) / 1000 if server != origin else 0.0


def one_day(traces: Path, day: int = 2) -> dict[str, list[float]]:
    """Return the demand (requests/s) of each step of one day, by region.

    Args:
        traces: see `demand_of`.
        day: 0-based, of the second week.
    """
    begins = STEPS_A_WEEK + day * STEPS_A_WEEK // 7
    scale = MEAN_USE * SLOTS / SERVICE_S / MEAN_PER_S
    weeks = demand_of(traces)
    return {
        name: [scale * rate for rate in rates[begins : begins + STEPS_A_WEEK // 7]] for name, rates in weeks.items()
    }


BOUNDS: Final = (
    Bounds(0.75, 0.8),
    Bounds(0.9, 0.9),
    Bounds(1.0, 1.0),
    Bounds(0.75, 0.8, preempts=True),
    Bounds(1.0, 0.8, preempts=True),
    Bounds(1.0, 1.0, preempts=True),
    Bounds(1.0, 1.0, preempts=True, patience=0.12),
)
"""The defaults of the policy, and others."""


def batch_days(demand: Mapping[str, Sequence[float]]) -> Iterator[BatchDay]:
    """Run the day with each of the BOUNDS, without a batch and with one."""
    for bounds in BOUNDS:
        for with_batch in (False, True):
            run = DayRun(bounds, with_batch=with_batch)
            run.run(demand)
            title = f"{bounds.max_use:.0%}, {bounds.target:.0%}{', preempts' if bounds.preempts else ''}"
            title += f" after {bounds.patience:.0%}" if bounds.patience else ""
            yield run.result(f"{title}, {'batch' if with_batch else 'none'}")
