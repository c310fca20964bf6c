"""Selects endpoints of this region, and reserves them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from penstock.fleet.expected_wait import headroom_slots
from penstock.health.engines.engine_kinds import ENGINES
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import CostUnit, Model
from penstock.pools.context_lengths import NO_ENDPOINTS, ContextLengths, NeededTokens, needed_tokens
from penstock.routing.endpoint_chooser import is_long
from penstock.routing.object_placement import ObjectRequest, why_not_at_endpoint
from penstock.routing.prefixes.hot_prefixes import SHORTEST, HotPrefixes
from penstock.routing.reasons import ConsideredEndpoint, Reason, Refusal
from penstock.routing.region_selection import RegionView
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.kv_cache.prompt_tokens import PromptTokens
from regional_agent.on_demand.on_demand_models import OnDemandModels
from regional_agent.requests.request_context import RequestContext, cost_fields_of
from regional_agent.routing.attempt import Attempt, LocalAttempt, LocalServices
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.routing.request_rewrite import can_rename
from regional_agent.telemetry.label_values import RequestKind

_NOT_FOUND: Final = Reason.NOT_FOUND
_TOO_LONG: Final = Reason.CONTEXT_LENGTH_EXCEEDED
_TOKEN: Final = CostUnit.TOKEN
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class LocalTargets:
    """The endpoints of this region as targets, in the order of the admission queue."""

    def __init__(
        self,
        services: LocalServices,
        queue: QueueDispatcher,
        prompt_tokens: PromptTokens | None = None,
        on_demand: OnDemandModels | None = None,
    ) -> None:
        """Create the targets of one agent.

        Args:
            services: the endpoints and their load, to which the attempts report.
            queue: holds requests that wait for capacity.
            prompt_tokens: receives the prompts whose tokens are needed; None for none.
            on_demand: wakes endpoints that requests need; None wakes none.
        """
        self.region = services.region
        self.chooser = services.chooser
        self.endpoints = services.endpoints
        self.queue = queue
        self.queues = queue.queues
        self.services = services
        self._prompt_tokens = prompt_tokens
        self.on_demand = on_demand
        self.hot_prefixes = HotPrefixes()
        """The prompt beginnings that requests of this agent share, for the other regions."""

    def consider(self, model: Model, tenant: str, session: str, now: float) -> tuple[ConsideredEndpoint, ...]:
        """Return the endpoints that selection would compare for a request of average size. Reserves nothing.

        Args:
            model: the requested model.
            tenant: name of the tenant; empty for none.
            session: the conversation that the request belongs to; empty for none.
            now: by the agent's clock (s).
        """
        refused = tuple(
            ConsideredEndpoint(each.name, None, each.view.in_flight, Reason.ENDPOINT_SKEWED, detail=each.reported.skew)
            for each in self.endpoints.refused(model.name)
        )
        return self.chooser.consider(self.endpoints.pools[model.name], model, tenant, session, now) + refused

    def view(self, model: str, context: RequestContext | None = None) -> RegionView:
        """Return this region's view for one model, for region selection; for one request with its `context`."""
        pool = self.endpoints.pools[model]
        longest = pool.largest_context
        unable = NO_ENDPOINTS
        # Most requests can be served by each endpoint.
        if context is not None and (
            pool.contexts or pool.renaming or context.estimate.adapter or context.subset or context.extends_text
        ):
            unable = self.unable(context, pool)
        wait_s = self.queues.wait_s(model, pool, unable)
        return RegionView(RegionState.HEALTHY, wait_s < inf, expected_wait_s=wait_s, context_tokens=longest)

    def wait_s(self, context: RequestContext) -> float:
        """Return the time (s) that one more request like this one would wait."""
        pool = self.endpoints.pools[context.model]
        return self.queues.wait_s(context.model, pool, self.unable(context, pool))

    def batch_room(self, context: RequestContext) -> int:
        """Return how many batch requests like one may start in this region now."""
        if not context.occupies_slot:
            return 1
        preempts = context.policy.preempts_batch(context.model)
        return self.queue.idle_slots(context.model, context.max_use, preempts=preempts)

    def uncommitted_slots(self, context: RequestContext) -> int:
        """Return how many slots below the target utilisation are free that no waiting request and no credit needs."""
        model, target = context.model, context.policy.spillover.target_utilisation
        pool, queue = self.endpoints.pools[model], self.queue
        needed = pool.in_flight + self.queues.waiting(model) + queue.promised(model)
        return min(headroom_slots(needed, pool.slots, target), queue.idle_slots(model, 1.0))

    def has_another(self, context: RequestContext, tried: frozenset[str]) -> bool:
        """Whether an endpoint besides those `tried` is ready that can serve a request."""
        pool = self.endpoints.pools[context.model]
        unable = self.unable(context, pool)
        return any(view.ready and view.name not in tried and view.name not in unable for view in pool.views)

    def unable(self, context: RequestContext, pool: EndpointPool) -> frozenset[str]:
        """Return the endpoints of a pool that cannot serve a request, however free they are."""
        return _unfit_endpoints(pool, context) | self.too_short(context, pool)

    def too_short(self, context: RequestContext, pool: EndpointPool) -> frozenset[str]:
        """Return the endpoints of a pool whose context length is too short for a request."""
        contexts, estimate = pool.contexts, context.estimate
        if contexts is None or not contexts.is_mixed or estimate.cost.unit is not _TOKEN or not context.occupies_slot:
            return NO_ENDPOINTS
        return contexts.too_short(self.needed_tokens(context).likely)

    def may_extend(self, model: str) -> bool:
        """Whether an endpoint of a model, ready or not, can extend a text."""
        each = self.endpoints.every()
        return any(model in endpoint.spec.models and ENGINES[endpoint.kind].extends_text for endpoint in each)

    def has_free_slot(self, model: str) -> bool:
        """Whether one more request for a model would start at once in this region."""
        pool = self.endpoints.pools[model]
        return pool.in_flight < pool.slots and not self.queues.is_awaited(model)

    def cached_s(self, context: RequestContext, now: float) -> float:
        """Return the prefill (s) that the region's caches spare a request which may still wait here at `now` (s).

        Returns 0 if the request cannot wait as long as the region expects: no cache is worth a refusal.
        """
        model = context.model
        wait_s, known = self.wait_s(context), context.policy.models.get(model)
        if known is None or now + wait_s > context.received_at + context.max_wait_s:
            return 0.0
        if self.queues.waiting_here(model) >= known.queueing.max_length:
            return 0.0
        return self.chooser.spared_s(self.endpoints.pools[model], context.estimate, now)

    def may_become_ready(self, context: RequestContext, model: Model) -> bool:
        """Whether an endpoint of a model may become ready within the wait of a request that fits into no ready one.

        True if one loads, restarts or is ejected while none is ready, and if one can wake or start soon enough.
        """
        pool, max_wait_s = self.endpoints.pools[model.name], context.max_wait_s
        if pool.ready:
            too_short = self.too_short(context, pool)
            if not too_short or any(view.ready and view.name not in too_short for view in pool.views):
                return False
        if self.on_demand is not None:
            may_wake = self.on_demand.may_wake(model, max_wait_s, context.residency.permitted.regions)
            if may_wake is not None:
                return may_wake
        if pool.ready:
            return False
        cold_start_s = model.scaling.cold_start_s
        if self.endpoints.may_become_ready(model.name, cold_start_s):
            return True
        return model.name not in self.endpoints.pools and 0.0 < cold_start_s <= max_wait_s

    def at_object(
        self, context: RequestContext, request: ObjectRequest, endpoint_name: str, now: float, *, in_turn: bool
    ) -> LocalAttempt | Reason:
        """Reserve the endpoint of this region that has an object; return the reason if it cannot serve the request.

        Args:
            in_turn: whether a request that occupies a slot may start here now.
        """
        pool = self.endpoints.pools[context.model]
        index = pool.positions.get(endpoint_name)
        if index is None:
            return _NOT_FOUND
        endpoint = pool.endpoints[index]
        problem = why_not_at_endpoint(
            request,
            endpoint.view,
            failed=context.failed_because if endpoint_name in context.tried_endpoints else None,
            excluded=endpoint_name in excluded_endpoints(pool, context),
            may_start=in_turn,
        )
        if problem is not None:
            return problem
        kind = RequestKind.FORWARDED if request.forwarded else RequestKind.HOME
        return self.services.reserve(context, endpoint, kind, now)

    def at_address(self, model: str, address: str) -> Endpoint | None:
        """Return the endpoint of a model that listens at `address` (`ip:port`); None if there is none."""
        return next((each for each in self.endpoints.pools[model].endpoints if str(each.address) == address), None)

    def alternatives(self, context: RequestContext, attempt: Attempt, count: int) -> list[Endpoint]:
        """Return up to `count` ready endpoints, least loaded first, for a request that `attempt` turns out to fail.

        They receive the same request as the target of `attempt`. Nothing is reserved on them.
        """
        pool = self.endpoints.pools[context.model]
        excluded = excluded_endpoints(pool, context) | {attempt.endpoint_name}
        rewrite = attempt.rewrite if isinstance(attempt, LocalAttempt) else None
        others = [
            each
            for each in pool.endpoints
            if each.view.ready
            and not each.view.draining
            and each.view.in_flight < each.view.slots
            and each.name not in excluded
            and each.rewrite == rewrite
        ]
        return sorted(others, key=lambda each: each.view.in_flight / each.view.slots)[:count]

    def place(self, context: RequestContext, kind: str, now: float) -> LocalAttempt | Reason:
        """Reserve the engine of this region that would finish soonest; return the reason if there is none.

        The caller checks whether a request that waits comes first.

        Args:
            kind: why this region serves the request.
        """
        if context.is_batch and not self.batch_room(context):
            return Reason.SATURATED
        pool = self.endpoints.pools[context.model]
        excluded = excluded_endpoints(pool, context)
        contexts = pool.contexts
        if contexts is not None and (contexts.is_mixed or contexts.may_exceed(context.estimate.ask)):
            unfit = self._unfit(context, pool, contexts, excluded)
            if isinstance(unfit, Reason):
                return unfit
            excluded |= unfit
        estimate = context.estimate
        leaves_one = is_long(estimate) and self.queue.is_shared(context, now)
        age_s = now - self.services.shared_load.read_at
        chosen = self.chooser.choose(pool, estimate, excluded, age_s, now, leaves_one=leaves_one)
        # An endpoint may accept a request that waits in its engine.
        waits = not isinstance(chosen, tuple) or chosen[0].view.in_flight >= chosen[0].view.slots
        if waits and self._makes_room(context, excluded, now):
            chosen = self.chooser.choose(pool, estimate, excluded, age_s, now, leaves_one=leaves_one)
        if not isinstance(chosen, tuple):
            if context.occupies_slot:
                return Reason.SATURATED if context.busy_endpoints else chosen
            ready = [each for each in pool.endpoints if each.view.ready and each.name not in excluded]
            if not ready:
                return chosen
            chosen = min(ready, key=lambda each: each.view.in_flight / each.view.slots), 0.0
        endpoint, spared_s = chosen
        if endpoint.kv_events is not None and self._prompt_tokens is not None:
            self._prompt_tokens.sent(endpoint, context.request, context.estimate)
        if len(estimate.prefix) >= SHORTEST and context.policy.spillover.shares_prefixes is True:
            self.hot_prefixes.sent(estimate.prefix, context.residency.permitted.regions, now)
        return self.services.reserve(context, endpoint, kind, now, spared_s)

    def _makes_room(self, context: RequestContext, excluded: frozenset[str], now: float) -> bool:
        """End a running batch request for a request with a priority, which would wait or leave the region otherwise."""
        if context.is_batch or not context.occupies_slot:
            return False
        waiting = max(1, self.queues.waiting_here(context.model) - self.queues.batch_waiting_here(context.model))
        waits_s = inf if context.max_wait_s == 0.0 else now - context.received_at
        return self.queue.batch_requests.make_room(context.model, waiting, now, waits_s, excluded)

    def _unfit(
        self, context: RequestContext, pool: EndpointPool, contexts: ContextLengths, excluded: frozenset[str]
    ) -> frozenset[str] | Reason:
        """Return the endpoints that a request is not sent to for its length; a reason if it is too long for all."""
        estimate = context.estimate
        if estimate.cost.unit is not _TOKEN or not context.occupies_slot:
            return NO_ENDPOINTS
        needed = self.needed_tokens(context)
        if 0 < contexts.largest < needed.surely:
            return _TOO_LONG
        context.context_class = contexts.smallest_fitting(needed.likely) if contexts.is_mixed else 0
        return contexts.excluded(needed.likely, pool.views, excluded)

    def needed_tokens(self, context: RequestContext) -> NeededTokens:
        """Return the context length that a request needs."""
        if context.needed is None:
            request, ask = context.request, context.estimate.ask
            cost = cost_fields_of(request)
            context.needed = needed_tokens(self.chooser.expectations, context.model, ask, request.body, cost)
        return context.needed

    def exclude_shorter(self, context: RequestContext, views: Mapping[str, RegionView]) -> None:
        """Exclude the regions whose context length is too short for a request, as far as it is known."""
        surely = self.needed_tokens(context).surely
        for region in context.residency.permitted.regions:
            if 0 < views[region].context_tokens < surely:
                context.tried(region, _TOO_LONG)

    def too_long_for_all(self, context: RequestContext, views: Mapping[str, RegionView]) -> Refusal | None:
        """Refuse a request that is too long for every permitted region that serves the model.

        None for another request, and while a region is away whose endpoints were long enough.
        """
        tried = context.tried_regions
        if _TOO_LONG not in tried.values():
            return None
        regions = context.residency.permitted.regions
        surely = self.needed_tokens(context).surely
        others = [views[region] for region in regions if tried.get(region) is not _TOO_LONG]
        if any(view.ready or view.context_tokens >= surely for view in others):
            return None
        return self.too_long(context, max(views[region].context_tokens for region in regions))

    def too_long(self, context: RequestContext, largest: int) -> Refusal:
        """Refuse a request for which the largest context length, of `largest` tokens, is too short."""
        tokens = self.needed_tokens(context).surely
        return Refusal(
            _TOO_LONG,
            f"this model's maximum context length is {largest} tokens, and the request needs more than {tokens}, its"
            " answer included; shorten the prompt or lower max_tokens",
        )


def _unfit_endpoints(pool: EndpointPool, context: RequestContext) -> frozenset[str]:
    unfit: frozenset[str] = NO_ENDPOINTS
    if context.estimate.adapter:
        unfit = pool.without_adapter(context.estimate.adapter)
    elif pool.renaming and not can_rename(context.request):
        unfit = pool.renaming
    if context.subset is not None:
        unfit |= pool.outside(context.subset)
    if context.extends_text:
        unfit |= pool.unable_to_extend()
    return unfit


def excluded_endpoints(pool: EndpointPool, context: RequestContext) -> frozenset[str]:
    """The endpoints that did not start the request, or that cannot serve it."""
    excluded = context.tried_endpoints | _unfit_endpoints(pool, context)
    if pool.lacking and (route := context.request.route) is not None:
        excluded |= _avoidable(pool, excluded, pool.without_route(route.name, context.received_at))
    if context.broken:
        # The request may be the cause of a failure, and its second failure would not move it again. Engines of one host
        # often end together: they may be one process.
        on_trial = frozenset(view.name for view in pool.views if view.trial)
        for avoided in (on_trial, pool.beside(context.tried_endpoints)):
            excluded |= _avoidable(pool, excluded, avoided)
    return excluded


def _avoidable(pool: EndpointPool, excluded: frozenset[str], avoided: frozenset[str]) -> frozenset[str]:
    """The endpoints to avoid if another one is ready, else none."""
    has_other = avoided and any(view.ready and view.name not in excluded | avoided for view in pool.views)
    return avoided if has_other else NO_ENDPOINTS
