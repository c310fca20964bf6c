"""One Penstock agent on the virtual clock, with the product's accounts, endpoint chooser, queue and shared load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from random import Random
from typing import Generic

from lab.simulate.fleets import Request
from lab.simulate.region import ONE_SENDER, Region, Sender, Served
from lab.simulate.shared_view import Published
from penstock.admission.model_queue import ModelQueue, Pass, QueueHead, remote_head
from penstock.admission.region_work import RegionWork, WorkTotal, differences
from penstock.admission.tenant_order import QueuedRequest, urgency_at
from penstock.fleet.shared_counts import MIN_INTERVAL_S, weight_at_age, weighted_count
from penstock.policy.kinds.models import Queueing
from penstock.pools.placement import Placement, WorkEstimate
from penstock.pools.pool_accounting import NO_LOAD, EndpointAccount, Load, PoolAccount
from penstock.routing.endpoint_chooser import EndpointChooser, is_long
from penstock.routing.endpoint_selection import LONG_PREFILL_US, EndpointView
from penstock.routing.prefixes.prefix_sketch import holder_wait_s
from penstock.routing.prefixes.region_prefixes import PromptWork
from penstock.routing.reasons import Reason
from regional_agent.routing.queue_dispatcher import YIELD_S
from regional_agent.shared_load.published_load import PublishedLoad

RECOUNT_S = 0.2
"""Interval (s) at which an agent updates the learned service times."""

POLL_S = 0.1
"""Interval (s) at which an agent polls its queue."""

PREFIX_INTERVAL_S = 0.05
"""Minimum interval (s) between publications of prefixes, as in an agent."""

PRIOR_SERVICE_S = 5.0
"""Expected service time (s) of a request before the first completion."""

EngineLoads = Mapping[str, tuple[int, int, int]]
"""By engine: requests, reserved prefill (µs), reserved decode (µs)."""

MODEL = "model"
"""Name of the only model of a simulated region."""

NO_WORK: dict[str, list[WorkTotal]] = {}

UNBOUNDED_S = 1e8
"""A maximum wait (s) that no request of a simulation reaches."""


class PenstockAgent(Generic[Request]):
    """One agent with its engine accounts, endpoint chooser and queue."""

    def __init__(self, region: Region[Request], number: int, queueing: Queueing) -> None:
        """Create an agent without measurements.

        Args:
            number: index of the agent, from 0.
            queueing: order of the agent's queue.
        """
        self._work = RegionWork()
        self.queue: ModelQueue[Served[Request]] = ModelQueue(numbers_from=number << 32, counters=self._work.of(MODEL))
        self._region: Region[Request] = region
        self._number = number
        self._queueing = queueing
        rng = Random(region.seed * 1000 + number)
        self._rng = rng
        self._reader = region.shared.reader(number, rng.random())
        self._remote: dict[int, Published] = {}
        self._remote_weight = 1.0
        self._other_heads: list[QueueHead] = []
        self._yields = self._polls = self._publishes = self._wakes = False
        self._published_at = -MIN_INTERVAL_S
        self._recounted_at = self._prefixes_at = 0.0
        self._chooser = EndpointChooser(rng)
        self._chooser.affinity.publishes = True
        self._pool: PoolAccount[EndpointAccount] = PoolAccount(PRIOR_SERVICE_S)
        self._pool.set_endpoints([self._account(index) for index in range(len(region.fleet.kinds))])
        for endpoint in self._pool.endpoints:
            endpoint.pools = (self._pool,)
        self._pool.recount()
        self._pool.update_speeds()

    def _account(self, index: int) -> EndpointAccount:
        kind = self._region.fleet.kinds[index]
        queue = int(kind.max_num_seqs > 1)  # one request may wait in a batching engine
        view = EndpointView(f"engine-{index}", kind.max_num_seqs, kind.max_num_seqs + queue, ready=True)
        return EndpointAccount(view, kind.accelerator)

    @property
    def has_room(self) -> bool:
        """Whether an engine accepts one more request."""
        return self._pool.has_room

    @property
    def service_s(self) -> float:
        """Mean time (s) for which a request holds a slot."""
        return self._pool.service_s

    def spared_s(self, request: Request) -> float:
        """Return the prefill (s) that the engines' caches spare a request at most."""
        return self._chooser.spared_s(self._pool, self._estimate(request), self._region.clock.now)

    def prompt_work(self, request: Request, model: str) -> PromptWork:
        """Return the prefill of a request."""
        estimate = self._estimate(request)
        return PromptWork(model, self._chooser.block_s(estimate), estimate.work.prefill_s)

    def holder_wait_s(self, key: int) -> float | None:
        """Return the wait (s) of the soonest engine that holds the beginning of a prompt; None without one."""
        names = self._chooser.affinity.holders(key, self._region.clock.now)
        return holder_wait_s([self._pool.endpoints[self._pool.positions[name]].view for name in names])

    def arrive(self, served: Served[Request]) -> None:
        """Receive a request of a client."""
        now = self._region.clock.now
        self._update(now)
        sender = self._sender(served.request)
        if self.queue.must_queue(sender.priority, now, self._other_heads) or not self._place(served):
            estimate = self._estimate(served.request)
            work, served.is_long = estimate.work, is_long(estimate)
            work_s, give_up_at = work.prefill_s + work.decode_s, now + UNBOUNDED_S
            urgency = urgency_at(self._queueing, now, give_up_at, work_s, PRIOR_SERVICE_S)
            waiting = QueuedRequest(served, sender.tenant, sender.priority, 0, now, urgency, give_up_at)
            waiting.cost_s, waiting.weight = work_s, sender.weight
            self.queue.join(waiting, now)
            self._changed()
            self._serve()

    def notified(self, delay_s: float) -> None:
        """Read another agent's publication after `delay_s`, if requests wait at this agent."""
        if len(self.queue) and not self._wakes:
            self._wakes = self._region.shared.age_s is None
            self._region.clock.at(self._region.clock.now + delay_s, self._wake)

    def _wake(self) -> None:
        self._wakes = False
        if len(self.queue):
            self._update(self._region.clock.now)
            self._serve()

    def _update(self, now: float, *, exchanges: bool = False) -> None:
        """Apply other agents' publications, and update the learned service times."""
        for number, published in self._reader.read(now, waits=len(self.queue) > 0, exchanges=exchanges):
            before = self._remote.get(number)
            self._remote[number] = published
            self._apply_change(before.load.loads if before is not None else {}, published.load.loads)
            past = before.load.work if before is not None else NO_WORK
            self._work.started_elsewhere(differences(past, published.load.work), now)
            for engine, prefixes in published.prefixes.items():
                self._chooser.affinity.receive(engine, prefixes, published.at)
        weight = weight_at_age(now - self._reader.read_at)
        if weight != self._remote_weight:
            self._remote_weight = weight
            self._apply_loads(self._pool.positions)
        heads = [published.head for published in self._remote.values() if published.head is not None and weight > 0.0]
        counters = self.queue.counters
        self._other_heads = [remote_head(counters, each.behind, each.tenant, each.since, each.which) for each in heads]
        if now - self._recounted_at >= RECOUNT_S:
            self._recounted_at = now
            self._pool.recount()
            self._pool.update_speeds()

    def _apply_change(self, before: EngineLoads, after: EngineLoads) -> None:
        """Replace the loads of an agent's previous publication by the loads of its new publication."""
        changed = [engine for engine in {**before, **after} if before.get(engine) != after.get(engine)]
        if self._remote_weight < 1.0:
            self._apply_loads(changed)
            return
        for engine in changed:
            endpoint = self._pool.endpoints[self._pool.positions[engine]]
            old, new, remote = before.get(engine, NO_LOAD), after.get(engine, NO_LOAD), endpoint.remote_load
            endpoint.set_remote_load(
                Load(
                    remote.requests + new[0] - old[0],
                    remote.prefill_us + new[1] - old[1],
                    remote.decode_us + new[2] - old[2],
                )
            )

    def _apply_loads(self, engines: Iterable[str]) -> None:
        weight = self._remote_weight
        for engine in engines:
            loads = [published.load.loads.get(engine, NO_LOAD) for published in self._remote.values()]
            remote = Load(
                sum([weighted_count(load[0], weight) for load in loads]),
                sum([weighted_count(load[1], weight) for load in loads]),
                sum([weighted_count(load[2], weight) for load in loads]),
            )
            endpoint = self._pool.endpoints[self._pool.positions[engine]]
            if remote != endpoint.remote_load:
                endpoint.set_remote_load(remote)

    def _changed(self) -> None:
        """Schedule a publication."""
        if not self._publishes:
            self._publishes = True
            self._region.clock.at(self._published_at + MIN_INTERVAL_S, self._publish)

    def _publish(self) -> None:
        now = self._region.clock.now
        self._publishes, self._published_at = False, now
        every = [(endpoint.name, endpoint.local_load) for endpoint in self._pool.endpoints]
        loads = {name: (load.requests, load.prefill_us, load.decode_us) for name, load in every if load.requests}
        load = PublishedLoad(f"agent-{self._number}", 1, 0, loads, work=self._work.totals(now))
        prefixes: dict[str, list[int]] = {}
        if now - self._prefixes_at >= PREFIX_INTERVAL_S:
            self._prefixes_at = now
            prefixes = self._chooser.affinity.take_unpublished()
        self._region.publish(self._number, Published(now, load, self.queue.head(now, self._other_heads), prefixes))
        self._update(now, exchanges=True)
        if len(self.queue):
            self._serve()

    def _place(self, served: Served[Request]) -> bool:
        clock, request = self._region.clock, served.request
        estimate = self._estimate(request)
        age_s = clock.now - self._reader.read_at
        leaves_one = is_long(estimate) and self.queue.counters.is_shared(estimate.tenant, clock.now)
        chosen = self._chooser.choose(self._pool, estimate, (), age_s, clock.now, leaves_one=leaves_one)
        if isinstance(chosen, Reason):
            return False
        endpoint, spared_s = chosen
        placement = Placement(endpoint, estimate, spared_s, clock.now)
        placement.take()
        placement.charged_s = estimate.work.prefill_s + estimate.work.decode_s - spared_s
        sender = self._sender(request)
        placement.counter = self.queue.counters.start(
            sender.priority, sender.tenant, sender.weight, placement.charged_s, clock.now
        )
        self._changed()

        def on_first() -> None:
            if placement.first_byte(clock.now):
                is_long = placement.prefill_us >= LONG_PREFILL_US
                placement.end_prefill()
                self._changed()
                if is_long and len(self.queue):
                    self._update(clock.now)
                    self._serve()
                self._chooser.learn_first_byte(placement, clock.now)

        def on_end() -> None:
            usage = self._region.fleet.usage(request)
            placement.release()
            placement.end_charge(clock.now, clock.now - placement.since, usage)
            self._changed()
            endpoint.completed(clock.now - placement.since)
            self._chooser.learn_response(placement, clock.now, usage)
            if len(self.queue):
                self._update(clock.now)
                self._serve()

        self._region.send(self._pool.positions[endpoint.name], served, on_first, on_end)
        return True

    def _group(self, served: Served[Request]) -> str:
        return "long" if served.is_long else ""

    def _sender(self, request: Request) -> Sender:
        return self._region.senders.get(request.tenant, ONE_SENDER)

    def _estimate(self, request: Request) -> WorkEstimate:
        fleet, tenant = self._region.fleet, self._sender(request).tenant
        ask = fleet.ask(request)
        work = self._chooser.expectations.estimate(fleet.cost, tenant, "", ask)
        estimate = WorkEstimate(tenant, "", fleet.cost, ask, work, streaming=fleet.streaming)
        estimate.prefix = fleet.prefix_keys(request)
        return estimate

    def _serve(self) -> None:
        now = self._region.clock.now
        offers = Pass(self.queue, self._other_heads, now)
        while (request := (offer := offers.next(now, has_room=self._pool.has_room)).request) is not None:
            if self._place(request.item):
                self.queue.leave(request)
                self._changed()
            else:
                offers.no_target(request)
        if offer.left_to is not None and not self._yields:
            self._yields = True
            self._region.clock.at(now + YIELD_S, partial(self._end_turn, offer.left_to))
        if len(self.queue) and not self._polls:
            self._polls = True
            self._region.clock.at(now + POLL_S, self._poll)

    def _end_turn(self, left_to: QueueHead) -> None:
        self._yields = False
        now = self._region.clock.now
        self._update(now)
        if self._pool.has_room:
            self.queue.pass_over(left_to, now)
        self._serve()

    def _poll(self) -> None:
        self._polls = False
        self._wake()
