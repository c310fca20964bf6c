"""Reads the request of a client: steps 1 to 5, which end in a `RequestContext` or in a refusal."""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec import UNSET

from penstock.cost.cost_estimate import CostEstimator
from penstock.meters.demand_meter import DemandMeter
from penstock.planning.plan import RegionPlan
from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import ModelVersions
from penstock.policy.kinds.tenants import BATCH_PRIORITY, Tenant
from penstock.policy.model_versions import (
    WHOLE_PERCENT,
    old_version,
    receives_new,
    reserved_model,
    rollout_of,
    session_position,
    sticky_key,
    version_at,
    versions_of,
    with_share,
)
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask
from penstock.routes.classify import RequestFields
from penstock.routes.object_locations import ObjectLocation
from penstock.routes.timeouts import NO_TIMEOUTS, total_limit_s
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.budget_reservations import BudgetReservation
from penstock.tenancy.permissions import permits_name
from penstock.wire import trace_context
from regional_agent.http.messages import Request, valid_request_id
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests.authorization import Authorization, Sender, model_not_found, refuse_route
from regional_agent.requests.model_name import can_replace_model, replace_model, request_fields
from regional_agent.requests.request_context import RequestContext, session_of, work_estimate_of
from regional_agent.requests.requested_object import (
    NO_OBJECT,
    earlier_object,
    is_for_object,
    location_at,
    prefer_object,
    refuse_foreign_objects,
)

IDS_AT_ONCE: Final = 64
"""Number of trace ids generated per batch."""

_BATCH: Final = BATCH_PRIORITY
_MODEL_NOT_FOUND: Final = Reason.MODEL_NOT_FOUND
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_FALLS_BACK: Final = frozenset({Reason.NONE_READY, Reason.SATURATED})
"""Refusals for lack of capacity; the fallback model may have capacity."""

_NO_ID: Final = "0" * 16


class ClientRequestReader:
    """Creates the contexts of clients' requests."""

    def __init__(
        self,
        authorization: Authorization,
        expectations: CostEstimator,
        objects: KnownObjects,
        demand: DemandMeter,
        rng: Random,
    ) -> None:
        """Create a reader of the requests that clients send to this agent.

        Args:
            authorization: what the policy in force permits.
            expectations: estimates the work of a request.
            objects: the locations of objects, for requests that name one.
            demand: counts authorized requests.
        """
        self.authorization = authorization
        self.objects = objects
        """The locations of objects."""
        self.plan: RegionPlan | None = None
        """The plan in force if it has shares of versions."""
        self._expectations = expectations
        self._demand = demand
        self._rng = rng
        self._trace_ids: list[str] = []
        """Ids for the next requests, drawn in batches to reduce the cost per id."""

    def without_demand(self) -> ClientRequestReader:
        """Return a reader whose requests are no demand: an engine may not have to serve them."""
        uncounted = DemandMeter(0.0)
        return ClientRequestReader(self.authorization, self._expectations, self.objects, uncounted, self._rng)

    def use_shares(self, plan: RegionPlan) -> None:
        """Use the shares of versions in a plan that has come into force; without one, requests need no plan."""
        self.plan = plan if plan.version_shares else None

    def read(
        self,
        policy: Policy,
        request: Request,
        sender: Sender,
        now: float,
        client_timeout_s: float,
        agent_timeout_s: float,
    ) -> RequestContext | Refusal:
        """Return the context of a request that a client sent to this agent, or the refusal.

        Args:
            policy: the policy in force.
            sender: the sender, which has been authenticated.
            client_timeout_s: the timeout (s) that the client set; inf for none.
            agent_timeout_s: the total timeout (s) of requests whose route and model set none.
        """
        authorization = self.authorization
        tenant, facts, reader = sender.tenant, sender.facts, request.reader
        principal = sender.principal
        if principal.routes is not None:
            refusal = refuse_route(principal, request)
            if refusal is not None:
                return refusal
        route = request.route
        location: ObjectLocation | None = None
        earlier: ObjectLocation | None = None
        versions: ModelVersions | None = None
        fields: RequestFields | Refusal
        if reader is not None and is_for_object(request, reader):
            location = location_at(self.objects, request, reader.object_parameter, tenant.name, now)
            if location is None:
                return Refusal(Reason.NOT_FOUND, NO_OBJECT)
            fields = RequestFields(location.model)
        else:
            fields = request_fields(request)
        if not isinstance(fields, RequestFields):
            return fields
        if route is not None and route.foreign_objects:
            foreign = refuse_foreign_objects(request, route)
            if foreign is not None:
                return foreign
        if route is not None and route.previous_object and route.continues_objects:
            found = earlier_object(self.objects, request, route, tenant.name, now)
            if isinstance(found, Refusal):
                return found
            earlier = found
        asked_for = fields.model
        if policy.versions and location is None:
            versions = versions_of(policy, asked_for)
        if versions is not None:
            if not permits_name(principal.models, asked_for):
                return model_not_found(asked_for)
            fields = self._version(policy, versions, tenant, request, fields, earlier)
            if not isinstance(fields, RequestFields):
                return fields
        if earlier is not None and _has_fallen_back(policy, fields.model, earlier):
            fields = replace_model(request, earlier.model) or fields
        mask = sender.masks.get(fields.model) or authorization.mask(policy, fields.model, principal, facts)
        adapter = ""
        if not isinstance(mask, Mask) and mask.reason is _MODEL_NOT_FOUND:
            if location is not None and location.model in policy.models:
                # The tenant has created the object, so a list of models that became shorter does not hide it.
                mask = authorization.residency(policy, facts)
            elif location is None and fields.model not in policy.models:
                base = base_model_of(policy, fields.model)
                if base is not None:
                    adapter, fields.model, asked_for = fields.model, base, base
                    mask = authorization.adapter_mask(policy, adapter, principal, facts)
        if not isinstance(mask, Mask):
            return mask
        if location is not None and location.region not in mask.permitted.regions:
            return Refusal(Reason.NO_PERMITTED_REGION, f"residency forbids {location.region}, which has the object")
        model = policy.models[fields.model]
        # One object for all requests: look-ups compare it by identity, and its hash is computed once.
        fields.model = model.name
        estimate = work_estimate_of(request, fields, facts.tenant, model.cost, self._expectations)
        estimate.adapter = adapter
        reservation: BudgetReservation | None = None
        if sender.budgets is not None:
            reserved = authorization.reserve(sender.budgets, policy, estimate, request, now)
            if isinstance(reserved, Refusal):
                return reserved
            reservation = reserved
        try:
            context = RequestContext(request, estimate, facts, mask, policy, now)
            headers = request.by_name or request.index()
            if not self._trace_ids:
                self._trace_ids = _trace_ids(self._rng)
            trace_id = self._trace_ids.pop()
            given_id, given_trace = headers.get(b"x-request-id"), headers.get(b"traceparent")
            context.request_id = trace_id if given_id is None else valid_request_id(given_id, trace_id)
            continued = None if given_trace is None else trace_context.continue_trace(given_trace)
            context.traceparent = continued or trace_context.start_trace(trace_id)
            timeout_s = total_limit_s(model.timeouts, NO_TIMEOUTS if route is None else route.timeouts, agent_timeout_s)
            if client_timeout_s < timeout_s:
                timeout_s = client_timeout_s
            context.deadline_at = now + timeout_s
            context.own_deadline = timeout_s == client_timeout_s
            context.principal = principal
            context.priority = priority = _BATCH if sender.is_job else tenant.priority
            context.is_batch = priority == _BATCH
            context.weight = tenant.weight
            context.max_use = tenant.max_use
            context.max_wait_s = model.max_wait_s
            context.reservation = reservation
            context.asked_for = asked_for
            if location is not None:
                context.object_location = location
            elif earlier is not None:
                context.object_location, context.may_fall_back = earlier, False
            elif route is not None and route.client_object:
                prefer_object(self.objects, context, now)
            country = facts.location.country
            self._demand.offered(fields.model, mask.permitted, country, priority=priority)
        except BaseException:
            if reservation is not None:
                reservation.give_back(now)
            raise
        return context

    def fall_back(self, context: RequestContext, request: Request, refusal: Refusal) -> bool:
        """Switch a request that would be refused to the policy's fallback model; returns whether the model changed.

        The model of an answer that is being continued does not change.
        """
        policy = context.policy
        model = policy.models.get(context.model)
        if (
            model is None
            or model.fallback is None
            or context.route_context is not None
            or context.continuations
            or not context.may_fall_back
            or refusal.reason not in _FALLS_BACK
        ):
            return False
        if isinstance(self.authorization.mask(policy, model.fallback, context.principal, context.facts), Refusal):
            return False
        fields = replace_model(request, model.fallback)
        if fields is None:
            return False
        fallback, facts = policy.models[fields.model], context.facts
        context.estimate = work_estimate_of(request, fields, facts.tenant, fallback.cost, self._expectations)
        context.model, context.needed = fields.model, None
        context.max_wait_s = fallback.max_wait_s
        context.forget_tries()
        permitted, country = context.residency.permitted, facts.location.country
        self._demand.offered(fields.model, permitted, country, priority=context.priority)
        return True

    def _version(
        self,
        policy: Policy,
        versions: ModelVersions,
        tenant: Tenant,
        request: Request,
        fields: RequestFields,
        earlier: ObjectLocation | None,
    ) -> RequestFields | Refusal:
        """Rewrite the request for the model version that serves it: that of the object from which the request continues
        (`earlier`), else that of its session, which does not change."""
        version = reserved_model(versions, tenant)
        if not can_replace_model(request):
            if version is not None:
                if version == fields.model:
                    return fields
                return Refusal(Reason.BAD_REQUEST, f"{fields.model} is served by {version}; request it by that name")
            if any(each.model == fields.model for each in versions.versions):
                return fields
            names = ", ".join(each.model for each in versions.versions)
            return Refusal(Reason.BAD_REQUEST, f"{fields.model} has several versions; request one of them: {names}")
        if version is None and earlier is not None and any(each.model == earlier.model for each in versions.versions):
            version = earlier.model
        if version is None:
            version = self._drawn_version(policy, versions, tenant.name, request, fields)
        if version == fields.model:
            return fields
        return replace_model(request, version) or Refusal(
            Reason.BAD_REQUEST,
            "the body's model name is repeated or contains escapes; send it once, without escapes",
        )

    def _drawn_version(
        self, policy: Policy, versions: ModelVersions, tenant: str, request: Request, fields: RequestFields
    ) -> str:
        """The version that the shares, or the choice of the tenant or client, give to a request."""
        name, session = fields.model, session_of(request, fields)
        key: bytes | None = session or None
        share = None if self.plan is None else self.plan.version_share(policy, name)
        if share is not None:
            rollout = rollout_of(policy, name)
            assert rollout is not None
            is_new = receives_new(rollout, tenant, choice_of(request, rollout))
            if is_new is not None:
                return rollout.to if is_new else old_version(versions, rollout)
            key = sticky_key(rollout, session)
            versions = with_share(versions, share.to, share.percent)
        if key is None:
            return version_at(versions, self._rng.random() * WHOLE_PERCENT)
        return version_at(versions, session_position(tenant, name, key))


def choice_of(request: Request, rollout: ModelRollout) -> bytes | None:
    """The value of the header by which a request chooses a version; None without one."""
    return None if rollout.header is UNSET else request.header(rollout.header.encode())


def _has_fallen_back(policy: Policy, model: str, earlier: ObjectLocation) -> bool:
    """Whether the fallback of a model created the object from which a request for the model continues."""
    asked = policy.models.get(model)
    return asked is not None and asked.fallback == earlier.model


def _trace_ids(rng: Random) -> list[str]:
    """Return IDS_AT_ONCE ids for `trace_context.start_trace`."""
    digits = _NO_ID
    while _NO_ID in digits:
        digits = rng.randbytes(16 * IDS_AT_ONCE).hex()
    return [digits[at : at + 32] for at in range(0, len(digits), 32)]
