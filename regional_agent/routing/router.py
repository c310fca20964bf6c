"""Selects the region and endpoint of a request that has been read (`regional_agent/requests/`).

The proxy calls `next_target` again after every attempt that did not start; it returns the next attempt, with its
reservation, or the refusal for the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from random import Random
from typing import Final

from msgspec.structs import replace

from penstock.admission.retry_after import MIN_RETRY_S, retry_after_s
from penstock.cost.work_estimate import session_key_of
from penstock.fleet.counts.message_bytes import BytesTally
from penstock.planning.plan import ArcReason
from penstock.retries.next_step import refuse_attempt
from penstock.retries.retry_rules import MAX_BROKEN
from penstock.routes.object_locations import ObjectLocation
from penstock.routing.decision import decide, decide_burst, is_servable
from penstock.routing.object_placement import ObjectRequest, refuse_object, region_with_object
from penstock.routing.prefixes.hot_prefixes import SHORTEST
from penstock.routing.prefixes.region_prefixes import NOTHING_SPARED, PromptWork, spared_elsewhere
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import (
    RegionChoice,
    RegionRequest,
    RegionView,
    idle_region_exists,
    soonest_retry_s,
)
from penstock.routing.spilled_sessions import SpilledSessions
from penstock.routing.weighted_sampler import accepts_full_share
from regional_agent.config.active_config import ActiveConfig
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.reauthorization import Reauthorization
from regional_agent.requests.request_context import NO_NAMES, RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.batch_targets import BatchTargets
from regional_agent.routing.burst_targets import BurstTargets, awaits_idle_region
from regional_agent.routing.forwarded_attempt import ForwardedAttempt
from regional_agent.routing.local_targets import LocalTargets
from regional_agent.routing.peer_targets import PeerTargets
from regional_agent.routing.queue_entry import OnTarget, QueueEntry, Waiter
from regional_agent.telemetry.label_values import RequestKind

MAX_UNREACHABLE: Final = 3
"""Number of endpoints of this region that a request leaves before another region is preferred to further ones."""

_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
_NOT_FOUND: Final = Reason.NOT_FOUND
_SATURATED: Final = Reason.SATURATED
_TOO_LONG: Final = Reason.CONTEXT_LENGTH_EXCEEDED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class Router:
    """Creates the attempts of requests."""

    def __init__(
        self,
        config: ActiveConfig,
        requests: ClientRequestReader,
        local: LocalTargets,
        peers: PeerTargets,
        rng: Random,
        sizes: BytesTally,
    ) -> None:
        """Create the router of an agent.

        Args:
            config: the policy and plan in force.
            requests: reads the requests of clients.
            local: the endpoints of this region.
            peers: the agents of other regions.
            sizes: of the messages of models, by which the egress of batch requests is estimated.
        """
        self.region = local.region
        self.requests = requests
        self.local = local
        self.reauthorization = Reauthorization(local.region, config, requests.authorization)
        self._config = config
        self._peers = peers
        self.queue = local.queue
        """Holds requests that wait."""
        self.queues = local.queues
        self._rng = rng
        self.batch = BatchTargets(config, local, peers, rng, sizes)
        """The targets of requests below all priorities."""
        self.burst = BurstTargets(local)
        """The burst endpoints of this region."""
        self.spilled = SpilledSessions()
        """The sessions that this agent sent to other regions by spillover."""

    def _views_for(self, context: RequestContext, now: float) -> dict[str, RegionView]:
        """Return the views of the regions that a request may use. A region that cannot serve it is not ready."""
        view, model = self._peers.view, context.model
        views = {region: view(region, model, now) for region in context.residency.permitted.regions}
        if context.extends_text:
            views = {region: replace(each, ready=each.ready and each.extends_text) for region, each in views.items()}
        views[self.region] = self.local.view(model, context)
        return views

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
        suspects = self.local.endpoints.failures.suspects
        if now < suspects.until and not (context.attempts or context.broken) and context.request.whole:
            context.may_end_engines = suspects.includes(context.estimate.tenant, context.request.body, now)
            context.broken = (MAX_BROKEN - 1) * context.may_end_engines
        failed = context.broken + context.failed_elsewhere
        if failed or context.attempts:
            attempts = 0 if in_turn and context.failed_because is _SATURATED else context.attempts
            refusal = refuse_attempt(context.failed_because, attempts, failed, context.failures_left)
            if refusal is not None:
                return refusal
        if context.route_context is None and len(context.tried_endpoints) >= MAX_BROKEN:
            self._leave_region(context, now)
        location = context.object_location
        at_object: Attempt | Reason = _NOT_FOUND
        if location is not None:
            at_object = self._object_target(context, location, now, in_turn=in_turn)
        if isinstance(at_object, (LocalAttempt, ForwardedAttempt)):
            target: Attempt | Refusal = at_object
        elif location is not None and context.needs_object:
            target = refuse_object(
                location, at_object, self.queues.wait_s(context.model, self.local.endpoints.pools[context.model])
            )
        elif context.route_context is None:
            target = self._target_from_origin(context, now, in_turn=in_turn)
        else:
            target = self._target_for_peer(context, now, in_turn=in_turn)
        if isinstance(target, Refusal) and not context.left_region and self.burst.may_serve(context.model, target):
            idle = self._may_leave(context, now)
            target = self.burst.place(context, now, in_turn=in_turn, idle_elsewhere=idle) or target
        if isinstance(target, Refusal) and self.burst.may_serve_elsewhere(context, target):
            target = self._burst_elsewhere(context, now, in_turn=in_turn) or target
        if isinstance(target, (LocalAttempt, ForwardedAttempt)):
            context.attempts += 1
        return target

    def _leave_region(self, context: RequestContext, now: float) -> None:
        """Exclude this region for a request that as many of its engines failed as may, or that could connect to none of
        several, if another region can serve it."""
        if self.region in context.tried_regions:
            return
        unreachable = len(context.tried_endpoints) >= MAX_UNREACHABLE and context.failed_because is _ENGINE_FAILED
        if context.left_region or (
            unreachable and self.has_other_target(context, NO_NAMES, now, failed_region=self.region)
        ):
            context.tried(self.region, _ENGINE_FAILED)

    def has_other_target(
        self, context: RequestContext, tried: frozenset[str], now: float, *, failed_region: str = ""
    ) -> bool:
        """Whether a request that leaves its target has another one. A forwarded one has: its origin knows others.

        Args:
            tried: names of the endpoints of this region that have failed.
            failed_region: a region that has failed, besides those of the context; empty for none.
        """
        if context.needs_object or context.route_context is not None:
            return not context.needs_object
        policy = self._config.policy
        assert policy is not None
        regions = {name: why for name, why in context.tried_regions.items() if name != self.region}
        if failed_region:
            regions[failed_region] = Reason.ENGINE_FAILED
        views = self._views_for(context, now)
        views[self.region] = replace(views[self.region], ready=self.burst.has_another_here(context, tried, now))
        request = RegionRequest(self.region, context.model, context.residency.permitted, regions)
        return is_servable(policy, self._config.plan, request, views)

    def wait(self, context: RequestContext, size_bytes: int, on_target: OnTarget, now: float) -> QueueEntry | Refusal:
        """Queue a request that no target has room for, or refuse it.

        Args:
            size_bytes: memory (bytes) of the request body.
            on_target: called with the target when there is room, or with the refusal.
        """
        if context.is_for_object:
            return self._saturated(context, "requests for an object are not queued", now)
        location = context.object_location
        if location is not None and location.region != self.region and context.needs_object:
            return self._saturated(context, f"the request was queued in {location.region}, which has the object", now)
        if context.route_context is not None and context.route_context.for_burst:
            return self._saturated(context, f"no burst endpoint of {self.region} is free", now)
        if context.is_batch and context.route_context is not None:
            return self._saturated(context, f"batch requests of other regions are not queued in {self.region}", now)
        elsewhere = self._may_leave(context, now)
        is_away = elsewhere and context.is_batch
        is_ready = self.local.wait_s(context) < inf
        if not (is_ready or is_away or self.awaits_endpoint(context)):
            return self._saturated(context, f"{self.region} has no ready endpoint", now)
        unable = self.local.unable(context, self.local.endpoints.pools[context.model])
        waiter = Waiter(context, self._try_again, on_target, unable)
        return self.queue.join(waiter, size_bytes, now, elsewhere=elsewhere)

    def awaits_endpoint(self, context: RequestContext) -> bool:
        """Whether a request may wait for an endpoint of this region, of which none is ready, or for another region that
        has not answered yet since the start of this agent."""
        policy = self._config.policy
        model = None if policy is None else policy.models.get(context.model)
        if model is None or context.route_context is not None or context.is_for_object or context.max_wait_s <= 0.0:
            return False
        may_extend = not context.extends_text or self.local.may_extend(context.model)
        if may_extend and not context.left_region and self.local.may_become_ready(context, model):
            return True
        return not context.needs_object and any(map(self._peers.is_awaited, context.residency.permitted.regions))

    def _try_again(self, context: RequestContext, now: float) -> Attempt | Refusal | None:
        """Retry a queued request: regions and engines that were full or busy may have room."""
        context.tried_regions = {
            region: reason
            for region, reason in context.tried_regions.items()
            if reason not in (Reason.SATURATED, Reason.MODEL_NOT_READY)
            or (region != self.region and not self._has_room(region, context, now))
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

    def _has_room(self, region: str, context: RequestContext, now: float) -> bool:
        view = self._peers.view(region, context.model, now)
        return (view.batch_room if context.is_batch else view.credits or view.burst_room) > 0

    def _object_target(
        self, context: RequestContext, location: ObjectLocation, now: float, *, in_turn: bool
    ) -> Attempt | Reason:
        """Return a target in the region that has an object, or the reason why there is no target."""
        is_forwarded = context.route_context is not None
        needs_object = context.needs_object
        request = ObjectRequest(context.model, context.is_for_object, needs_object, context.occupies_slot, is_forwarded)
        view = self._peers.view(location.region, context.model, now)
        is_batch, permitted = context.is_batch, context.residency.permitted
        if is_batch:
            view = replace(view, credits=view.batch_room)
        where = region_with_object(request, location, permitted, self.region, view, context.tried_regions)
        if not isinstance(where, RegionChoice):
            return where
        if where.region == self.region:
            may_start = (needs_object or is_forwarded or self._plans_home(context)) and (
                in_turn or not self.queue.must_queue(context)
            )
            may_start = may_start and (not is_batch or self.local.batch_room(context) > 0)
            return self.local.at_object(context, request, location.endpoint, now, in_turn=may_start)
        if is_batch and where.spends_credit:
            where = replace(where, why=ArcReason.BATCH)
        return self._peers.forward(context, where)

    def _plans_home(self, context: RequestContext) -> bool:
        """Whether this region has a share of the request's traffic class in the plan; True without a plan for it."""
        sampler = self._config.samplers.get((context.model, context.residency.permitted.name))
        return sampler is None or sampler.includes_home

    def _target_for_peer(self, context: RequestContext, now: float, *, in_turn: bool) -> Attempt | Refusal:
        """Return a local target for a forwarded request, which is never forwarded again."""
        target: LocalAttempt | Reason = Reason.NONE_READY
        assert context.route_context is not None
        if context.route_context.for_burst:
            # The request has no credit: its own slots are those that no credit of another origin may use.
            if self.local.uncommitted_slots(context) > 0 and not self.queue.must_queue(context):
                target = self.local.place(context, RequestKind.FORWARDED, now)
            if isinstance(target, Reason):
                target = self.burst.place_of_origin(context, now) or Reason.SATURATED
        elif not context.left_region:
            may_start = in_turn or not self.queue.must_queue(context)
            target = self.local.place(context, RequestKind.FORWARDED, now) if may_start else Reason.SATURATED
        if not isinstance(target, Reason):
            return target
        if target is _TOO_LONG:
            return self.local.too_long(context, self.local.endpoints.pools[context.model].largest_context)
        detail = f"{self.region} has no endpoint for the request"
        if target is not Reason.SATURATED:
            return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)
        model = context.policy.models.get(context.model)
        if model is not None:
            # An endpoint that the request fits into may wake before the origin tries again.
            self.local.may_become_ready(context, model)
        return Refusal(target, detail, retry_after_s=retry_after_s(self.local.wait_s(context)))

    def _target_from_origin(self, context: RequestContext, now: float, *, in_turn: bool) -> Attempt | Refusal:
        """Select the region; if it is full or unreachable, exclude it and select again."""
        policy, plan = self._config.policy, self._config.plan
        assert policy is not None
        if context.is_batch:
            return self.batch.select(context, now, in_turn=in_turn)
        session, stays_in = None, ""
        if len(self.spilled):
            session = session_key_of(context.estimate, context.request.body)
            stays_in = "" if session is None else self.spilled.region_of(session, now)
        is_restricted = context.tried_regions or stays_in or context.extends_text
        planned = None if is_restricted else self._planned_choice(context, now)
        if planned is not None:
            # The plan selects this region only while its queue is empty, so that no earlier request is overtaken.
            if planned.region == self.region:
                target: Attempt | Reason = self.local.place(context, planned.why, now)
            else:
                target = self._peers.forward(context, planned)
            if isinstance(target, (LocalAttempt, ForwardedAttempt)):
                return target
            context.tried(planned.region, target)
        while True:
            permitted, tried = context.residency.permitted, context.tried_regions
            is_full = tried.get(self.region) is Reason.SATURATED
            views = self._views_for(context, now)
            others_wait = not in_turn and self.queues.is_awaited(context.model)
            may_start = not (others_wait and self.queue.must_queue(context))
            may_spill = not (others_wait and self.queues.higher_waits(context.model, context.priority))
            cached_s, spared_s = 0.0, NOTHING_SPARED
            if len(permitted.regions) > 1:
                session = session_key_of(context.estimate, context.request.body)
                if may_spill and views[self.region].expected_wait_s > 0.0:
                    cached_s = self.local.cached_s(context, now)
                    if len(context.estimate.prefix) >= SHORTEST:
                        spared_s = self._spared_elsewhere(context, views)
            request = RegionRequest(
                self.region, context.model, permitted, tried, is_full, session, may_spill, cached_s, stays_in, spared_s
            )
            decision = decide(policy, plan, context.residency, request, views, self._rng)
            if isinstance(decision, Refusal):
                return self.local.too_long_for_all(context, views) or decision
            where = decision.choice
            if where.region == self.region:
                target = self.local.place(context, where.why, now) if may_start else Reason.SATURATED
            else:
                cheaper = self.burst.place_before_spillover(context, where.region, now) if where.spends_credit else None
                if cheaper is not None:
                    return cheaper
                target = self._peers.forward(context, where)
            if isinstance(target, (LocalAttempt, ForwardedAttempt)):
                if where.spends_credit and session is not None:
                    self.spilled.spilled(session, where.region, now)
                return target
            context.tried(where.region, target)
            if target is _TOO_LONG:
                self.local.exclude_shorter(context, views)

    def after(self, context: RequestContext, first: Attempt, now: float) -> tuple[ForwardedAttempt | None, bool]:
        """Return what follows if the target of `first` does not serve a request: an attempt in the next region, if one
        is selected, and whether this region follows then. Reserves nothing.

        After an endpoint, that region has granted a credit if any has, since the endpoint may be full.
        """
        if context.needs_object or context.is_batch or context.route_context is not None:
            return None, False
        policy, permitted = self._config.policy, context.residency.permitted
        assert policy is not None
        session = session_key_of(context.estimate, context.request.body)
        views, tried = self._views_for(context, now), {**context.tried_regions, first.region: _SATURATED}
        following: ForwardedAttempt | None = None
        while True:
            is_full = tried.get(self.region) is _SATURATED
            request = RegionRequest(self.region, context.model, permitted, tried, is_full, session)
            decision = decide(policy, self._config.plan, context.residency, request, views, self._rng)
            if isinstance(decision, Refusal):
                if first.from_peer or not is_full:
                    return following, False
                tried[self.region] = _ENGINE_FAILED
                continue
            where = decision.choice
            if where.region == self.region or following is not None:
                return following, where.region == self.region
            target = self._peers.forward(context, where, is_next=True)
            if isinstance(target, ForwardedAttempt):
                if not first.from_peer:
                    return target, False
                following = target
            tried[where.region] = target if isinstance(target, Reason) else _SATURATED

    def _burst_elsewhere(self, context: RequestContext, now: float, *, in_turn: bool) -> Attempt | None:
        """Select a burst endpoint of another region for a request without a target; None if none is worth its cost."""
        policy, tried = self._config.policy, context.tried_regions
        assert policy is not None
        # As for burst endpoints of this region, a credit of an idle region may come first.
        if awaits_idle_region(context, now) and self._may_leave(context, now):
            return None
        burst, region, permitted = self.burst, self.region, context.residency.permitted
        views = self._views_for(context, now)
        if not any(view.burst_room for view in views.values()):
            return None
        otherwise = burst.otherwise(context, now, in_turn=in_turn)
        request = RegionRequest(region, context.model, permitted, tried, service_s=burst.service_s(context.model))
        where = decide_burst(policy, self._config.plan, context.residency, request, views, otherwise)
        target = None if where is None else self._peers.forward(context, where)
        return target if isinstance(target, ForwardedAttempt) else None

    def _spared_elsewhere(self, context: RequestContext, views: Mapping[str, RegionView]) -> Mapping[str, float]:
        """Return the prefill (s) that the caches of other permitted regions spare a request."""
        policy, estimate = context.policy, context.estimate
        if policy.spillover.shares_prefixes is not True:
            return NOTHING_SPARED
        others = context.residency.permitted.regions - {self.region}
        held = {region: self._peers.held(region, estimate.prefix) for region in others}
        work = PromptWork(context.model, self.local.chooser.block_s(estimate), estimate.work.prefill_s)
        waits_s = {region: views[region].expected_wait_s for region in others}
        return spared_elsewhere(policy, self.region, work, held, waits_s)

    def _planned_choice(self, context: RequestContext, now: float) -> RegionChoice | None:
        """Return the plan's region for a request without attempts; None if the plan alone does not decide."""
        model, permitted = context.model, context.residency.permitted
        sampler = self._config.samplers.get((model, permitted.name))
        if sampler is None or (sampler.includes_home and not self.local.has_free_slot(model)):
            return None
        if not sampler.remote:
            return sampler.choices[0]
        view = self._peers.view
        if not sampler.within(permitted):
            return None
        if not all(accepts_full_share(view(region, model, now)) for region in sampler.remote):
            return None
        return sampler.sample(self._rng, session_key_of(context.estimate, context.request.body))

    def _saturated(self, context: RequestContext, detail: str, now: float) -> Refusal:
        permitted = context.residency.permitted
        return Refusal(
            Reason.SATURATED,
            detail,
            retry_after_s=soonest_retry_s(permitted, self.batch.views(permitted.regions, context.model, now)),
        )

    def _may_leave(self, context: RequestContext, now: float) -> bool:
        """Whether an idle region may soon grant a credit for a request."""
        if context.route_context is not None:
            return False
        permitted, views = context.residency.permitted, self._views_for(context, now)
        return idle_region_exists(self.region, permitted, views, context.tried_regions)
