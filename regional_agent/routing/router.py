"""Selects the region and endpoint of a request that has been read (`regional_agent/requests/`).

The proxy calls `next_target` again after every attempt that did not start; it returns the next attempt, with its
reservation, or the refusal for the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from penstock.admission.retry_after import MIN_RETRY_S, retry_after_s
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import Model
from penstock.policy.policy import Policy
from penstock.routes.object_locations import ObjectLocation
from penstock.routing.decision import decide
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.object_placement import ObjectRequest, refuse_object, region_with_object, why_not_at_endpoint
from penstock.routing.reasons import ConsideredEndpoint, Reason, Refusal
from penstock.routing.region_selection import (
    RegionChoice,
    RegionView,
    another_region_serves,
    idle_region_exists,
    soonest_retry_s,
)
from penstock.routing.weighted_sampler import accepts_full_share
from penstock.wire.route_context import RouteContext, content_digest, seal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.kv_cache.prompt_tokens import PromptTokens
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.identify import credential_of, key_id
from regional_agent.requests.reauthorization import Reauthorization
from regional_agent.requests.request_context import NO_NAMES, RequestContext
from regional_agent.routing.attempt import Attempt, ForwardedAttempt, LocalAttempt, LocalServices
from regional_agent.routing.engine_request import can_rename
from regional_agent.routing.queue_dispatcher import OnTarget, QueueDispatcher, QueueEntry
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.telemetry.outcomes import RequestKind

MAX_ATTEMPTS: Final = 6
"""Maximum number of attempts per request; each failed connection costs at most a connect timeout."""

MAX_BROKEN: Final = 2
"""Maximum number of engines that fail after they received a request; the request itself may be the cause."""

_NOT_FOUND: Final = Reason.NOT_FOUND
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class Router:
    """Creates the attempts of requests."""

    def __init__(
        self,
        region: str,
        config: ActiveConfig,
        endpoints: EndpointSet,
        shared_load: SharedLoad,
        queue: QueueDispatcher,
        peers: PeerProber,
        requests: ClientRequestReader,
        chooser: EndpointChooser,
        *,
        prompt_tokens: PromptTokens | None = None,
        rng: Random,
        clock: Callable[[], float],
    ) -> None:
        """Create the router of an agent.

        Args:
            region: the region of this agent.
            config: the policy and plan in force.
            endpoints: the endpoints of this region.
            shared_load: the reservations of all agents of the region on the endpoints.
            queue: holds requests that wait for capacity.
            peers: health, waits and spill credits of the other regions.
            requests: reads the requests of clients.
            chooser: selects an endpoint of this region.
            prompt_tokens: receives the prompts whose tokens are needed; None for none.
            clock: monotonic, in seconds.
        """
        self.region = region
        self.requests = requests
        self.reauthorization = Reauthorization(region, config, requests.authorization)
        self.chooser = chooser
        self._prompt_tokens = prompt_tokens
        self._config = config
        self._endpoints = endpoints
        self._shared_load = shared_load
        self._queue = queue
        self._peers = peers
        self._rng = rng
        self._clock = clock
        self._local = LocalServices(endpoints, shared_load, chooser, queue.room_appeared)

    def views(self, regions: Iterable[str], model: str, now: float) -> dict[str, RegionView]:
        """Return the views of `regions`, this region included, for one model."""
        view = self._peers.view
        views = {region: view(region, model, now) for region in regions}
        views[self.region] = self._local_view(model)
        return views

    def consider(self, model: Model, tenant: str, session: str, now: float) -> tuple[ConsideredEndpoint, ...]:
        """Return the endpoints that selection would compare for a request of average size. Reserves nothing.

        Args:
            model: the requested model.
            tenant: name of the tenant; empty for none.
            session: the conversation that the request belongs to; empty for none.
            now: by the agent's clock (s).
        """
        return self.chooser.consider(self._endpoints.pool(model.name), model, tenant, session, now)

    def next_target(self, context: RequestContext, now: float, *, in_turn: bool = False) -> Attempt | Refusal:
        """Steps 6 and 7: the next target of a request, with a reservation that `settle` releases.

        Args:
            in_turn: the request is at the head of the admission queue, so no waiting request precedes it.
        """
        if context.policy is not self._config.policy:
            refusal = self.reauthorization.reauthorize(context)
            if refusal is not None:
                return refusal
        plan = self._config.plan
        context.policy_digest = self._config.policy_digest
        context.plan_generation = 0 if plan is None else plan.generation
        if context.attempts >= MAX_ATTEMPTS:
            return Refusal(context.failed_because, f"{MAX_ATTEMPTS} attempts failed before a response began")
        if context.broken >= MAX_BROKEN:
            detail = f"{MAX_BROKEN} engines failed after they received the request, which may be the cause"
            return Refusal(Reason.ENGINE_FAILED, detail)
        location = context.object_location
        at_object: Attempt | Reason = _NOT_FOUND
        if location is not None:
            at_object = self._object_target(context, location, now, in_turn=in_turn)
        if not isinstance(at_object, Reason):
            target: Attempt | Refusal = at_object
        elif location is not None and context.is_for_object:
            target = refuse_object(location, at_object, self._queue.wait_s(context.model))
        elif context.route_context is None:
            target = self._target_from_origin(context, now, in_turn=in_turn)
        else:
            target = self._target_for_peer(context, now, in_turn=in_turn)
        if not isinstance(target, Refusal):
            context.attempts += 1
        return target

    def has_other_target(self, context: RequestContext, now: float) -> bool:
        """Whether a request that leaves its suspect endpoint has another target; without one, it stays there.

        A forwarded request leaves in any case: its origin knows the other regions.
        """
        if context.route_context is not None or self._endpoints.pool(context.model).ready > 0:
            return True
        permitted = context.residency.permitted
        views = self.views(permitted.regions, context.model, now)
        return another_region_serves(self.region, permitted, views, context.tried_regions)

    def wait(self, context: RequestContext, size_bytes: int, on_target: OnTarget, now: float) -> QueueEntry | Refusal:
        """Queue a request that no target has room for, or refuse it.

        Args:
            size_bytes: memory (bytes) of the request body.
            on_target: called with the target when there is room, or with the refusal.
        """
        if context.is_for_object:
            return self._saturated(context, "requests for an object are not queued", now)
        if context.attempts >= MAX_ATTEMPTS:
            return self._saturated(context, f"{MAX_ATTEMPTS} attempts were rejected", now)
        if not self._endpoints.pool(context.model).ready and not self.awaits_endpoint(context):
            return self._saturated(context, f"{self.region} has no ready endpoint", now)
        elsewhere = self._may_leave(context, now)
        return self._queue.join(context, size_bytes, self._try_again, on_target, now, elsewhere=elsewhere)

    def awaits_endpoint(self, context: RequestContext) -> bool:
        """Whether a request may wait for an endpoint of this region, of which none is ready.

        True if one loads, restarts or is ejected, and if one can start within the time for which the request may wait.
        """
        policy = self._config.policy
        model = None if policy is None else policy.models.get(context.model)
        if model is None or context.route_context is not None or context.is_for_object or context.max_wait_s <= 0.0:
            return False
        if self._endpoints.pool(context.model).ready:
            return False
        cold_start_s = model.scaling.cold_start_s
        if self._endpoints.may_become_ready(context.model, cold_start_s):
            return True
        return not self._endpoints.is_known(context.model) and 0.0 < cold_start_s <= context.max_wait_s

    def leave(self, entry: QueueEntry) -> None:
        """Remove a request from the queue."""
        self._queue.leave(entry)

    def _try_again(self, context: RequestContext, now: float) -> Attempt | Refusal | None:
        """Retry a queued request: regions and engines that were full or busy may have room."""
        view = self._peers.view
        context.tried_regions = {
            region: reason
            for region, reason in context.tried_regions.items()
            if reason not in (Reason.SATURATED, Reason.MODEL_NOT_READY)
            or (region != self.region and view(region, context.model, now).credits <= 0)
        }
        context.tried_endpoints -= context.busy_endpoints
        context.busy_endpoints = NO_NAMES
        if not context.broken and context.failed_because is Reason.ENGINE_FAILED:
            # Endpoints to which the request could not connect may have restarted.
            context.tried_endpoints = NO_NAMES
        target = self.next_target(context, now, in_turn=True)
        if not isinstance(target, Refusal):
            return target
        waits = target.reason is Reason.SATURATED or (
            target.reason is Reason.NONE_READY and self.awaits_endpoint(context)
        )
        return None if waits else target

    def _local_view(self, model: str) -> RegionView:
        """Return this region's view for one model, for region selection."""
        pool = self._endpoints.pool(model)
        return RegionView(RegionState.HEALTHY, ready=pool.ready > 0, expected_wait_s=self._queue.wait_s(model))

    def _has_free_slot(self, model: str) -> bool:
        """Whether one more request for a model would start at once in this region."""
        pool = self._endpoints.pool(model)
        return pool.in_flight < pool.slots and not self._queue.is_awaited(model)

    def _object_target(
        self, context: RequestContext, location: ObjectLocation, now: float, *, in_turn: bool
    ) -> Attempt | Reason:
        """Return a target in the region that has an object, or the reason why there is no target."""
        policy, is_forwarded = self._config.policy, context.route_context is not None
        request = ObjectRequest(context.model, context.is_for_object, _occupies_slot(context), is_forwarded)
        view = self._peers.view(location.region, context.model, now)
        permitted = context.residency.permitted
        where = region_with_object(request, location, permitted, self.region, view, context.tried_regions)
        if not isinstance(where, RegionChoice):
            return where
        if where.region == self.region:
            return self._object_endpoint(context, request, location.endpoint, now, in_turn=in_turn)
        return _NOT_FOUND if policy is None else self._peer_target(context, where, policy)

    def _object_endpoint(
        self, context: RequestContext, request: ObjectRequest, endpoint_name: str, now: float, *, in_turn: bool
    ) -> LocalAttempt | Reason:
        """Reserve the endpoint of this region that has an object; return the reason if it cannot serve the request."""
        pool = self._endpoints.pool(context.model)
        index = pool.positions.get(endpoint_name)
        if index is None:
            return _NOT_FOUND
        endpoint = pool.endpoints[index]
        problem = why_not_at_endpoint(
            request,
            endpoint.view,
            failed=context.failed_because if endpoint_name in context.tried_endpoints else None,
            excluded=endpoint_name in _excluded(pool, context),
            may_start=(request.forwarded or self._plans_home(context))
            and (in_turn or not self._queue.must_queue(context)),
        )
        if problem is not None:
            return problem
        kind = RequestKind.FORWARDED if request.forwarded else RequestKind.HOME
        attempt = LocalAttempt(endpoint, context.estimate, 0.0, now, self.region, kind, self._local)
        return self._reserve(context, attempt)

    def _plans_home(self, context: RequestContext) -> bool:
        """Whether this region has a share of the request's traffic class in the plan; True without a plan for it."""
        sampler = self._config.samplers.get((context.model, context.residency.permitted.name))
        return sampler is None or sampler.includes_home

    def _target_for_peer(self, context: RequestContext, now: float, *, in_turn: bool) -> Attempt | Refusal:
        """Return a local target for a forwarded request, which is never forwarded again."""
        target = self._local_target(context, RequestKind.FORWARDED, now, in_turn=in_turn)
        if not isinstance(target, Reason):
            return target
        detail = f"{self.region} has no endpoint for the request"
        if target is not Reason.SATURATED:
            return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)
        return Refusal(target, detail, retry_after_s=retry_after_s(self._queue.wait_s(context.model)))

    def _target_from_origin(self, context: RequestContext, now: float, *, in_turn: bool) -> Attempt | Refusal:
        """Select the region; if it is full or unreachable, exclude it and select again."""
        policy, plan = self._config.policy, self._config.plan
        assert policy is not None
        planned = None if context.tried_regions else self._planned_choice(context, now)
        if planned is not None:
            # The plan selects this region only while its queue is empty, so that no earlier request is overtaken.
            if planned.region == self.region:
                target: Attempt | Reason = self._placement(context, planned.why, now)
            else:
                target = self._peer_target(context, planned, policy)
            if not isinstance(target, Reason):
                return target
            context.tried(planned.region, target)
        while True:
            decision = decide(
                policy,
                plan,
                self.region,
                context.model,
                context.residency,
                self.views(context.residency.permitted.regions, context.model, now),
                self._rng,
                tried=context.tried_regions,
                overflow=context.tried_regions.get(self.region) is Reason.SATURATED,
            )
            if isinstance(decision, Refusal):
                return decision
            target = self._target(context, decision.choice, policy, now, in_turn=in_turn)
            if not isinstance(target, Reason):
                return target
            context.tried(decision.choice.region, target)

    def _planned_choice(self, context: RequestContext, now: float) -> RegionChoice | None:
        """Return the plan's region for a request without attempts; None if the plan alone does not decide."""
        model, permitted = context.model, context.residency.permitted
        sampler = self._config.samplers.get((model, permitted.name))
        if sampler is None or (sampler.includes_home and not self._has_free_slot(model)):
            return None
        if not sampler.remote:
            return sampler.choices[0]
        view = self._peers.view
        if not sampler.within(permitted):
            return None
        if not all(accepts_full_share(view(region, model, now)) for region in sampler.remote):
            return None
        return sampler.sample(self._rng)

    def _target(
        self, context: RequestContext, where: RegionChoice, policy: Policy, now: float, *, in_turn: bool
    ) -> Attempt | Reason:
        """Return a target in the selected region, or the reason why there is none."""
        if where.region != self.region:
            return self._peer_target(context, where, policy)
        return self._local_target(context, where.why, now, in_turn=in_turn)

    def _saturated(self, context: RequestContext, detail: str, now: float) -> Refusal:
        permitted = context.residency.permitted
        return Refusal(
            Reason.SATURATED,
            detail,
            retry_after_s=soonest_retry_s(permitted, self.views(permitted.regions, context.model, now)),
        )

    def _may_leave(self, context: RequestContext, now: float) -> bool:
        """Whether an idle region may soon grant spill credits for a request."""
        if context.route_context is not None:
            return False
        permitted = context.residency.permitted
        views = self.views(permitted.regions, context.model, now)
        return idle_region_exists(self.region, permitted, views, context.tried_regions)

    def _local_target(self, context: RequestContext, kind: str, now: float, *, in_turn: bool) -> LocalAttempt | Reason:
        """Return an engine of this region in queue order, or the reason why there is none."""
        if not in_turn and self._queue.must_queue(context) and _occupies_slot(context):
            return Reason.SATURATED
        return self._placement(context, kind, now)

    def _placement(self, context: RequestContext, kind: str, now: float) -> LocalAttempt | Reason:
        """Reserve the engine of this region that would finish soonest; return the reason if there is none."""
        pool = self._endpoints.pool(context.model)
        excluded = _excluded(pool, context)
        chosen = self.chooser.choose(pool, context.estimate, excluded, self._shared_load.age_s(), now)
        if isinstance(chosen, Reason):
            if _occupies_slot(context):
                return Reason.SATURATED if context.busy_endpoints else chosen
            ready = [each for each in pool.endpoints if each.view.ready and each.name not in excluded]
            if not ready:
                return chosen
            chosen = min(ready, key=lambda each: each.view.in_flight / each.view.slots), 0.0
        endpoint, spared_s = chosen
        if endpoint.kv_events is not None and self._prompt_tokens is not None:
            self._prompt_tokens.sent(endpoint, context.request, context.estimate)
        attempt = LocalAttempt(endpoint, context.estimate, spared_s, now, self.region, kind, self._local)
        return self._reserve(context, attempt)

    def _reserve(self, context: RequestContext, attempt: LocalAttempt) -> LocalAttempt:
        """Count an attempt on its endpoint, if it occupies a slot there."""
        if context.broken:
            attempt.broken_before = context
        if _occupies_slot(context):
            return self._shared_load.reserve(attempt)
        attempt.released = True
        return attempt

    def _peer_target(self, context: RequestContext, where: RegionChoice, policy: Policy) -> ForwardedAttempt | Reason:
        """Return a target in another region, with its signed route context. Uses a spill credit if required."""
        address = self._peers.address(where.region)
        session = None if address is None else self._peers.session(where.region, address)
        if address is None or session is None:
            return Reason.UNREACHABLE
        if where.spends_credit:
            self._peers.spend(where.region, context.model)
        request, wall, now = context.request, time.time(), self._clock()
        route_context = RouteContext(
            request_id=context.request_id,
            origin=self.region,
            server=where.region,
            tenant=context.facts.tenant,
            data_class=context.facts.data_class,
            location=context.facts.location,
            model=context.model,
            residency=tuple(sorted(context.residency.permitted.regions)),
            policy_digest=self._config.policy_digest,
            issued_at=wall,
            deadline_at=wall + context.deadline_at - now,
            queue_s=max(0.0, context.received_at + context.max_wait_s - now),
            traceparent=context.traceparent,
            traced=context.trace is not None,
            key_id=key_id(credential_of(request)),
            content=content_digest(request.method, request.target, request.body),
            body_bytes=request.length,
            extends_text=context.extends_text,
        )
        return ForwardedAttempt(where.region, address, where.why, seal(route_context, session).encode(), self._peers)


def _occupies_slot(context: RequestContext) -> bool:
    route = context.request.route
    return route is None or route.occupies_slot


def _excluded(pool: EndpointPool, context: RequestContext) -> frozenset[str]:
    """The endpoints that did not start the request, or that cannot serve it."""
    excluded = context.tried_endpoints
    if context.estimate.adapter:
        excluded |= pool.without_adapter(context.estimate.adapter)
    elif pool.renaming and not can_rename(context.request):
        excluded |= pool.renaming
    if context.extends_text:
        excluded |= pool.unable_to_extend()
    if context.broken:
        # The request may be the cause of a failure, and its second failure would not move it again.
        on_trial = frozenset(view.name for view in pool.views if view.trial)
        if on_trial and any(view.ready and view.name not in excluded | on_trial for view in pool.views):
            excluded |= on_trial
    return excluded
