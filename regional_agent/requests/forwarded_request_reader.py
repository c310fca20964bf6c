"""Reads a request that the agent of another region forwarded, by its signed route context."""

from __future__ import annotations

import time
from typing import Final

from penstock.cost.cost_estimate import CostEstimator
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Cost
from penstock.policy.kinds.tenants import BATCH_PRIORITY, MAX_PRIORITY, MAX_WEIGHT, MIN_WEIGHT
from penstock.policy.residency import Mask, RequestFacts, residency_class
from penstock.retries.retry_rules import MAX_FAILED
from penstock.routes.classify import RequestFields
from penstock.routes.object_locations import ObjectLocation
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.peer_keys import Keyring
from penstock.wire.route_context import HEADER, ReplayGuard, RouteContext, accept, refuse_here
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.messages import Request
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests.authorization import NO_POLICY, Authorization
from regional_agent.requests.model_name import request_fields
from regional_agent.requests.request_context import RequestContext, work_estimate_of
from regional_agent.requests.requested_object import (
    NO_OBJECT,
    earlier_object,
    is_for_object,
    location_at,
    prefer_object,
)

DEFAULT_COST: Final = Cost()
"""The cost of a model that another region's policy contains and the policy of this region does not contain yet."""

_ROUTE_HEADER: Final = HEADER.encode()


class ForwardedRequestReader:
    """Creates the contexts of requests that other regions forward."""

    def __init__(
        self,
        region: str,
        config: ActiveConfig,
        keyring: Keyring,
        authorization: Authorization,
        expectations: CostEstimator,
        objects: KnownObjects,
    ) -> None:
        """Create a reader of the requests that are forwarded to an agent of `region`.

        Args:
            region: the region of this agent.
            config: the policy in force.
            keyring: verifies the route contexts.
            authorization: what the policy in force permits.
            expectations: estimates the work of a request.
            objects: the locations of objects, for requests that name one.
        """
        self._region = region
        self._config = config
        self._keyring = keyring
        self._authorization = authorization
        self._expectations = expectations
        self._used = ReplayGuard()
        self.objects = objects
        """The locations of objects."""

    def read(self, request: Request, now: float) -> RequestContext | Refusal:
        """Return the context of a request that another region's agent forwarded, or the refusal.

        The forwarded facts are accepted once, if they are signed for this region and for this request.
        """
        policy = self._config.policy
        route_context = self.route_context_of(request)
        if isinstance(route_context, Refusal) or policy is None:
            return route_context if isinstance(route_context, Refusal) else NO_POLICY
        if not route_context.fits(request.method, request.target, request.body, request.length):
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "the route context is signed for another request")
        principal = self._authorization.forwarded_principal(policy, route_context)
        if isinstance(principal, Refusal):
            return principal
        withdrawn = self._authorization.withdrawn(policy).refuse_start(route_context.model, request.route)
        if withdrawn is not None:
            return withdrawn
        if not self._used.first((request.header(_ROUTE_HEADER) or b"").decode("latin-1"), now):
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "the route context was used before")
        facts = RequestFacts(route_context.tenant, route_context.data_class, route_context.location)
        mask = Mask(residency_class(frozenset(route_context.residency)))
        reader, route = request.reader, request.route
        location: ObjectLocation | None = None
        if reader is not None and is_for_object(request, reader):
            location = location_at(self.objects, request, reader.object_parameter, route_context.tenant, now)
            if location is None or location.region != self._region or location.model != route_context.model:
                return Refusal(Reason.NOT_FOUND, NO_OBJECT)
        elif route is not None and route.continues_objects:
            earlier = earlier_object(self.objects, request, route, route_context.tenant, now)
            if isinstance(earlier, Refusal):
                return earlier
            location = earlier
        fields = request_fields(request)
        if isinstance(fields, Refusal):
            fields = RequestFields(route_context.model)
        # The origin replaces the name of a version or a fallback in the request, but not that of an adapter.
        adapter = "" if fields.model == route_context.model else fields.model
        fields.model = route_context.model
        model = policy.models.get(fields.model)
        cost = DEFAULT_COST if model is None else model.cost
        estimate = work_estimate_of(request, fields, route_context.tenant, cost, self._expectations)
        estimate.adapter = adapter
        context = RequestContext(request, estimate, facts, mask, policy, now)
        context.request_id, context.traceparent = route_context.request_id, route_context.traceparent
        # Both times are from the origin's clock: the local clock may differ by seconds, which can exceed the deadline.
        context.deadline_at = now + route_context.deadline_at - route_context.issued_at
        context.route_context = route_context
        if location is not None:
            context.object_location = location
        elif route is not None and route.client_object:
            prefer_object(self.objects, context, now)
        context.extends_text = route_context.extends_text
        context.failed_elsewhere = min(MAX_FAILED, max(0, route_context.failed_engines))
        context.may_end_engines = route_context.may_end_engines
        max_wait_s = DEFAULT_MAX_WAIT_S if model is None else model.max_wait_s
        context.max_wait_s = min(max_wait_s, max(0.0, route_context.queue_s))
        context.principal, tenant = principal, principal.tenant
        context.priority, context.weight, context.max_use = tenant.priority, tenant.weight, tenant.max_use
        if route_context.priority is not None:
            context.priority = min(MAX_PRIORITY, max(BATCH_PRIORITY, route_context.priority))
            context.weight = min(MAX_WEIGHT, max(MIN_WEIGHT, route_context.weight))
            context.max_use = min(1.0, max(0.0, route_context.max_use))
            context.preemptions = route_context.preemptions
        context.is_batch = context.priority == BATCH_PRIORITY
        return context

    def route_context_of(self, request: Request) -> RouteContext | Refusal:
        """Verify the route context in a request's headers."""
        policy = self._config.policy
        if policy is None:
            return NO_POLICY
        token = request.header(_ROUTE_HEADER) or b""
        context = accept(token.decode("latin-1"), self._keyring, policy, self._region, time.time())
        if isinstance(context, Refusal):
            return context
        principal = self._authorization.forwarded_principal(policy, context)
        if isinstance(principal, Refusal):
            return principal
        # The stricter of the data class that the origin states and of the one that the tenant has here decides.
        own = RequestFacts(context.tenant, principal.tenant.data_class, context.location)
        refusal = None if own.data_class == context.data_class else refuse_here(policy, own, self._region)
        return refusal or context
