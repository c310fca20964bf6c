"""Sends requests to burst endpoints while no slot is free: to those of this region (`penstock.pools.burst`), and
requests of other regions that have no other target (`penstock.routing.burst_regions`)."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from math import inf
from typing import Final

from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import BurstPool
from penstock.policy.policy import Policy
from penstock.pools.burst import BurstStart, BurstUse, Otherwise, ServerState, free_slots, precedes_spillover, why_not
from penstock.pools.context_lengths import NO_ENDPOINTS
from penstock.routing.explain_burst import CLOSED, LACKS_ROOM, BurstFacts
from penstock.routing.reasons import ConsideredEndpoint, Reason, Refusal
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import LocalAttempt
from regional_agent.routing.local_targets import LocalTargets, excluded_endpoints
from regional_agent.routing.queue_dispatcher import CREDIT_WAIT_S
from regional_agent.telemetry.label_values import RequestKind

IDLE_REGION_S: Final = CREDIT_WAIT_S / 2.0
"""Maximum time (s) since its arrival for which a request waits for the credit of an idle region before it costs money:
shorter than it may wait for the credit at all."""

MAX_SERVERS: Final = 1_000
"""Number of endpoints whose state is kept; names may come and go with registrations."""


class BurstTargets:
    """The burst endpoints of this region, as one agent uses them."""

    def __init__(self, local: LocalTargets, *, may_pay: bool = True) -> None:
        """Create the targets beside those of the region's own endpoints; none is used unless `may_pay`."""
        self._local = local
        self._may_pay = may_pay
        self._servers: dict[str, ServerState] = {}
        """By name of the endpoint."""
        self.requests: dict[str, int] = defaultdict(int)
        """Requests that were sent, by model."""
        self.used_s: dict[str, float] = defaultdict(float)
        """Seconds of ended requests, by model."""
        self.cost: dict[str, float] = defaultdict(float)
        """Their cost, by model."""

    def may_serve(self, model: str, refusal: Refusal) -> bool:
        """Whether the region has a burst endpoint for a request, and what refuses it is a lack of room."""
        if refusal.reason not in LACKS_ROOM or not self._local.endpoints.burst_pools[model].ready:
            return False
        return not any(each.what == self._local.region and each.reason in CLOSED for each in refusal.rejected)

    def place(self, context: RequestContext, now: float, *, in_turn: bool, idle_elsewhere: bool) -> LocalAttempt | None:
        """Reserve a burst endpoint for a request that it may serve; None if it is to wait or to be refused.

        Args:
            in_turn: the request is at the head of the admission queue.
            idle_elsewhere: another region may soon grant a credit for the request.
        """
        if idle_elsewhere and awaits_idle_region(context, now):
            return None
        if context.is_batch and not in_turn and self._local.queue.must_queue(context):
            return None
        return self._place(context, self.otherwise(context, now, in_turn=in_turn), now)

    def place_of_origin(self, context: RequestContext, now: float) -> LocalAttempt | None:
        """Reserve a burst endpoint for a request that another region has no target for; None if there is no room."""
        return self._place(context, Otherwise(0, inf, context.deadline_at - now), now)

    def offer(self, model: str, policy: Policy) -> tuple[int, float]:
        """Return how many requests of other regions the burst endpoints can serve, and the time (s) until a server of
        them is expected to run."""
        pool, terms = self._local.endpoints.burst_pools[model], self._terms(policy, model)
        if terms is None or not pool.ready:
            return 0, 0.0
        free = [each for each in pool.endpoints if each.view.takes_more]
        room = sum(max(0, each.view.slots - each.view.in_flight) for each in free)
        return room, min((self._start(each, model, terms, each.now()).cold_s for each in free), default=0.0)

    def may_serve_elsewhere(self, context: RequestContext, refusal: Refusal) -> bool:
        """Whether a burst endpoint of another region may serve a request that has no target, by the policy's prices."""
        if refusal.reason not in LACKS_ROOM or context.route_context is not None or context.is_batch:
            return False
        if context.extends_text or context.left_region:
            return False
        regions = context.policy.regions
        others = context.residency.permitted.regions - {self._local.region}
        return _occupies_any_slot(context) and any(
            name in regions and regions[name].burst_of(context.model) is not None for name in others
        )

    def place_before_spillover(self, context: RequestContext, server: str, now: float) -> LocalAttempt | None:
        """Reserve a burst endpoint for a request that would spill to `server`, if that costs more; else None."""
        model = context.policy.models.get(context.model)
        terms = self._terms(context.policy, context.model)
        if model is None or terms is None or not self._local.endpoints.burst_pools[context.model].ready:
            return None
        cost = BurstStart(0.0, self.service_s(context.model)).cost(terms)
        if not precedes_spillover(context.policy, self._local.region, server, context.model, cost):
            return None
        return self._place(context, self.otherwise(context, now, in_turn=False), now, may_start=False)

    def has_another_here(self, context: RequestContext, tried: frozenset[str], now: float) -> bool:
        """Whether an endpoint of this region besides those `tried` can serve a request: one of its own, or a burst
        endpoint, which serves what would be refused otherwise."""
        otherwise = Otherwise(0, inf, context.deadline_at - now)
        return self._local.has_another(context, tried) or self._choose(context, tried, otherwise, now) is not None

    def known(self, policy: Policy, model: Model, now: float, *, is_full: bool) -> BurstFacts:
        """Return what decides whether burst endpoints serve a request that would not wait for its turn; for the
        explanation. With `is_full`, no slot of the region's own endpoints is free."""
        name, otherwise = model.name, self._expected(model, is_full=is_full)
        terms, here = self._terms(policy, name), self._local.endpoints.burst_pools[name].endpoints
        starts = [self._start(each, name, terms, now) for each in here if each.view.takes_more]
        is_served = any(why_not(policy, terms, otherwise, start) is None for start in starts)
        return BurstFacts(otherwise, self.service_s(name), is_served)

    def consider(self, policy: Policy, model: Model, now: float) -> tuple[ConsideredEndpoint, ...]:
        """Return the burst endpoints of a model, with the reason against each for a request that would not wait for its
        turn. Changes no state."""
        found, otherwise = [], self._expected(model, is_full=False)
        for endpoint in self._local.endpoints.burst_pools[model.name].endpoints:
            terms, view = self._terms(policy, model.name), endpoint.view
            start = self._start(endpoint, model.name, terms, now)
            verdict = why_not(policy, terms, otherwise, start)
            if not view.takes_more:
                reason, detail = view.unready_reason if not view.ready else Reason.ENDPOINT_FULL, view.detail
                found.append(ConsideredEndpoint(view.name, None, view.in_flight, reason, detail=detail))
            elif verdict is not None:
                reason, detail = verdict
                found.append(ConsideredEndpoint(view.name, None, view.in_flight, reason, detail=detail))
            else:
                assert terms is not None
                detail = f"burst: starts in {start.cold_s:.1f} s and costs {start.cost(terms):.4g}"
                done_s = start.cold_s + start.service_s
                found.append(ConsideredEndpoint(view.name, done_s, view.in_flight, detail=detail))
        return tuple(found)

    def _place(
        self, context: RequestContext, otherwise: Otherwise, now: float, *, may_start: bool = True
    ) -> LocalAttempt | None:
        """Reserve a burst endpoint; with `may_start`, also one whose server has to start."""
        local, model, terms = self._local, context.model, self._terms(context.policy, context.model)
        chosen = self._choose(context, NO_ENDPOINTS, otherwise, now)
        if chosen is None or terms is None or (chosen[1].cold_s and not may_start):
            return None
        endpoint, start = chosen
        kind = RequestKind.BURST if context.route_context is None else RequestKind.FORWARDED
        attempt = local.services.reserve(context, endpoint, kind, now)
        usual_s = attempt.expected_first_byte_s() or (0.0 if context.estimate.streaming else start.service_s)
        server, ended = self._server(endpoint), partial(self._ended, model)
        attempt.burst = BurstUse(server, terms.cost_per_second, usual_s, now, ended)
        server.sent(start.cold_s, now)
        self.requests[model] += 1
        # The provider starts and stops servers: times of requests show no speed, and any request may wait for a start,
        # which is no lack of progress.
        attempt.queued = True
        attempt.prefill_over_at += server.cold_start_s(terms)
        return attempt

    def _choose(
        self, context: RequestContext, tried: frozenset[str], otherwise: Otherwise, now: float
    ) -> tuple[Endpoint, BurstStart] | None:
        """Return a burst endpoint besides those `tried` that a request uses, and its start; None if it uses none."""
        local, model = self._local, context.model
        pool, terms = local.endpoints.burst_pools[model], self._terms(context.policy, model)
        if terms is None or not pool.ready or not _may_burst(context, local.region, terms):
            return None
        chosen = local.chooser.choose(pool, context.estimate, excluded_endpoints(pool, context) | tried, 0.0, now)
        if not isinstance(chosen, tuple):
            return None
        start = self._start(chosen[0], model, terms, now)
        return None if why_not(context.policy, terms, otherwise, start) is not None else (chosen[0], start)

    def _ended(self, model: str, used_s: float, cost: float) -> None:
        self.used_s[model] += used_s
        self.cost[model] += cost

    def otherwise(self, context: RequestContext, now: float, *, in_turn: bool) -> Otherwise:
        """Return what becomes of a request without burst endpoints."""
        local, model = self._local, context.model
        pool = local.endpoints.pools[model]
        known = context.policy.models.get(model)
        if known is not None:
            # A model on demand wakes although the request is served.
            local.may_become_ready(context, known)
        excluded = excluded_endpoints(pool, context) | local.too_short(context, pool)
        # An endpoint that was busy is tried again. Without any endpoint to wait for, the expected wait is infinite.
        useless = excluded - context.busy_endpoints
        wait_s = own_s = local.queues.wait_s(model, pool, useless)
        if in_turn and wait_s < inf:
            # The head of the queue waits for one slot, and what it saves are the waits of all behind it.
            slots, _, service_s = pool.load_without(useless)
            own_s = service_s / slots
            wait_s = max(own_s, wait_s - own_s)
        left_s = context.deadline_at - now
        # A job repeats a batch request that was refused, so that the refusal is worth no money.
        if own_s > min(context.received_at + context.max_wait_s - now, left_s) and not context.is_batch:
            wait_s = inf
        return Otherwise(self._free(model, excluded), wait_s, left_s)

    def _expected(self, model: Model, *, is_full: bool) -> Otherwise:
        """Return what becomes of a mean request that would not wait for its turn, without burst endpoints."""
        pool = self._local.endpoints.pools[model.name]
        wait_s = self._local.queues.wait_s(model.name, pool)
        if is_full and pool.slots:
            wait_s = max(wait_s, pool.service_s / pool.slots)
        free = 0 if is_full else self._free(model.name)
        return Otherwise(free, wait_s if wait_s <= model.max_wait_s else inf, inf)

    def _free(self, model: str, excluded: frozenset[str] = NO_ENDPOINTS) -> int:
        return free_slots(view for view in self._local.endpoints.pools[model].views if view.name not in excluded)

    def service_s(self, model: str) -> float:
        """Return the expected time (s) of a request on a server that runs."""
        own = self._local.endpoints.pools[model]
        return own.service_s if own.ready else self._local.endpoints.burst_pools[model].service_s

    def _start(self, endpoint: Endpoint, model: str, terms: BurstPool | None, now: float) -> BurstStart:
        server, running = self._server(endpoint), endpoint.view.in_flight
        cold_s = 0.0 if terms is None else server.runs_in_s(terms, running, now)
        return BurstStart(cold_s, self.service_s(model))

    def _server(self, endpoint: Endpoint) -> ServerState:
        server = self._servers.get(endpoint.name)
        if server is None:
            if len(self._servers) >= MAX_SERVERS:
                self._servers.clear()
            server = self._servers[endpoint.name] = ServerState()
        return server

    def _terms(self, policy: Policy, model: str) -> BurstPool | None:
        region = policy.regions.get(self._local.region)
        return None if region is None or not self._may_pay else region.burst_of(model)


def awaits_idle_region(context: RequestContext, now: float) -> bool:
    """Whether a request still waits for the credit of an idle region, which is free: for half its wait at most."""
    return now - context.received_at < min(IDLE_REGION_S, context.max_wait_s / 2.0)


def _may_burst(context: RequestContext, region: str, terms: BurstPool) -> bool:
    """Whether residency permits the region, and a request is not about objects, which only the endpoint that created
    them serves, nor of a batch for which policy or this region pays nothing."""
    return (
        region in context.residency.permitted.regions
        and (not context.is_batch or (terms.for_batches is True and context.route_context is None))
        and _occupies_any_slot(context)
    )


def _occupies_any_slot(context: RequestContext) -> bool:
    """Whether a request occupies a slot, of whichever endpoint."""
    route = context.request.route
    return (
        not context.needs_object
        and not context.client_object
        and not (route is not None and route.creates_objects)
        and context.occupies_slot
    )
