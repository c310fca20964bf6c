"""Admits requests: steps 1 to 5 (identify, classify, locate, residency mask, quota).

Under one policy, all results but classification depend only on the client's key and location, so the results are cached
by key and address: the next request of the same client needs one look-up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Final

from penstock.admission.queueing import MIN_RETRY_S
from penstock.cost.cost_estimate import CostEstimator
from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Cost, ModelVersions
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.model_versions import WHOLE_PERCENT, session_position, version_at, versions_of
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, ResidencyClass, residency_class
from penstock.pools.placement import WorkEstimate
from penstock.routes.object_locations import ObjectLocation
from penstock.routes.route_reader import RouteReader
from penstock.routes.timeouts import NO_TIMEOUTS, total_limit_s
from penstock.routing.decision import mask_at_origin
from penstock.routing.reasons import Reason, Refusal
from penstock.wire import trace_context
from penstock.wire.route_context import HEADER, ReplayGuard, RouteContext, accept
from penstock.wire.session import Sessions
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.messages import AdmittedHead, Request, valid_request_id
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests.classify import RequestFields
from regional_agent.requests.identify import Keyring, credential_of
from regional_agent.requests.locate import MAX_CACHED_CHAIN_BYTES, Locator
from regional_agent.requests.model_name import can_replace_model, replace_model, request_fields
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.route_fields import object_in
from regional_agent.requests.work_estimate import session_of, work_estimate_of
from regional_agent.routing.quotas import Quotas
from regional_agent.routing.withdrawn import Withdrawn
from regional_agent.telemetry.demand_meter import DemandMeter

MAX_ADMITTED: Final = 4096
"""Maximum number of cached (tenant, location) pairs."""

MAX_SENDERS: Final = 16_384
"""Maximum number of cached (key, address) pairs; the oldest entry is evicted first."""

IDS_AT_ONCE: Final = 64
"""Number of trace ids generated per batch."""

DEFAULT_COST: Final = Cost()
"""The cost of a model that another region's policy contains and the policy of this region does not contain yet."""

_ROUTE_HEADER: Final = HEADER.encode()
_MODEL_NOT_FOUND: Final = Reason.MODEL_NOT_FOUND
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_NO_POLICY: Final = "this agent has no policy yet"
_NO_OBJECT: Final = "no object of this tenant with this identifier was created through this region's agents"
_NO_ID: Final = "0" * 16

Masks = dict[str, Mask | Refusal]
"""The residency masks of one tenant and location, by model."""


SenderKey = tuple[bytes | None, bytes | None, bytes | None, str]
"""The cache key of a sender: Authorization, X-Forwarded-For, trusted location header, and peer address."""


class Sender:
    """The tenant and location of a client, under one policy."""

    __slots__ = ("facts", "masks", "tenant")

    def __init__(self, tenant: Tenant, facts: RequestFacts, masks: Masks) -> None:
        """`masks` is shared by all senders of one tenant and location."""
        self.tenant = tenant
        self.facts = facts
        self.masks = masks


class Admission:
    """Creates the context of each request, or refuses the request."""

    def __init__(
        self,
        region: str,
        config: ActiveConfig,
        locator: Locator,
        quotas: Quotas,
        demand: DemandMeter,
        *,
        expectations: CostEstimator,
        sessions: Sessions,
        objects: KnownObjects,
        rng: Random,
    ) -> None:
        """Create the admission of requests that reach an agent of `region`.

        Args:
            region: the region of this agent.
            config: the policy in force.
            locator: finds the client's location.
            quotas: limits tenants to their quotas.
            demand: counts admitted requests of clients.
            expectations: estimates the work of a request.
            sessions: verify the route context of forwarded requests.
            objects: the locations of objects, for requests that name one.
        """
        self._region = region
        self._config = config
        self._locator = locator
        self._quotas = quotas
        self._demand = demand
        self._sessions = sessions
        self._rng = rng
        self._expectations = expectations
        self._location_header = self._locator.header
        self._policy: Policy | None = None
        """The policy under which all cached entries were computed."""
        self._located_by = self._locator.generation
        """The generation of the GeoIP database that located the cached senders."""
        self._keyring: Keyring
        self._senders: dict[SenderKey, Sender] = {}
        self._masks: dict[tuple[str, str | None, str | None], Masks] = {}
        self._trace_ids = _trace_ids(rng)
        self._residency: dict[tuple[str, str | None, str | None], Mask | Refusal] = {}
        """The residency masks by tenant and location, for any model."""
        self._withdrawn = Withdrawn()
        """For requests that other regions forward."""
        self._used = ReplayGuard()
        self.objects = objects
        """The locations of objects."""

    def context_from_client(
        self, request: Request, peer_ip: str, now: float, client_timeout_s: float, agent_timeout_s: float
    ) -> RequestContext | Refusal:
        """Return the context of a request that a client sent to this agent, or the refusal.

        Args:
            peer_ip: the address of the TCP peer.
            client_timeout_s: the timeout (s) that the client set; inf for none.
            agent_timeout_s: the total timeout (s) of requests whose route and model set none.
        """
        policy = self._config.policy
        if policy is None:
            return Refusal(Reason.NO_POLICY, _NO_POLICY, retry_after_s=MIN_RETRY_S)
        if policy is not self._policy:
            self._switch_policy(policy)
        if self._locator.generation != self._located_by:
            self._located_by = self._locator.generation
            self._senders.clear()
        headers = request.by_name or request.index()
        location_header = headers.get(self._location_header)
        # A location header from an untrusted peer has no effect, so it is not part of the cache key.
        if location_header is not None and not self._locator.trusts(peer_ip):
            location_header = None
        authorization, route = headers.get(b"authorization"), request.route
        if request.upgrade or (route is not None and route.api_key_header):
            credential = credential_of(request)
            if isinstance(credential, Refusal):
                return credential
            authorization = credential
        key = (authorization, headers.get(b"x-forwarded-for"), location_header, peer_ip)
        sender = self._senders.get(key)
        if sender is None or request.repeats:
            identified = self._identify(request, key)
            if isinstance(identified, Refusal):
                return identified
            sender = identified
        tenant, facts, reader = sender.tenant, sender.facts, request.reader
        location: ObjectLocation | None = None
        versions: ModelVersions | None = None
        fields: RequestFields | Refusal
        if reader is not None and _is_for_object(request, reader):
            location = self._location_at(request, reader.object_parameter, tenant.name, now)
            if location is None:
                return Refusal(Reason.NOT_FOUND, _NO_OBJECT)
            fields = RequestFields(location.model)
        else:
            fields = request_fields(request)
        if isinstance(fields, Refusal):
            return fields
        asked_for = fields.model
        if policy.versions and location is None:
            versions = versions_of(policy, asked_for)
        if versions is not None:
            fields = self._version(versions, facts.tenant, request, fields)
            if isinstance(fields, Refusal):
                return fields
        admitted = sender.masks.get(fields.model) or self.admit(policy, fields.model, facts)
        adapter = ""
        if isinstance(admitted, Refusal) and admitted.reason is _MODEL_NOT_FOUND:
            base = base_model_of(policy, fields.model)
            if base is not None:
                adapter, fields.model, asked_for = fields.model, base, base
                admitted = sender.masks.get(base) or self.admit(policy, base, facts)
        if isinstance(admitted, Refusal):
            return admitted
        if location is not None and location.region not in admitted.permitted.regions:
            return Refusal(Reason.NO_PERMITTED_REGION, f"residency forbids {location.region}, which has the object")
        counted = False
        if tenant.quota is not None:
            head = request.admitted
            if head is not None and head.holds_quota and head.tenant == tenant.name:
                head.holds_quota, counted = False, True
            else:
                started = self._quotas.start(tenant, now)
                if isinstance(started, Refusal):
                    return started
                counted = started
        try:
            trace_id = next(self._trace_ids)
            given_id, given_trace = headers.get(b"x-request-id"), headers.get(b"traceparent")
            request_id = trace_id if given_id is None else valid_request_id(given_id, trace_id)
            continued = None if given_trace is None else trace_context.continue_trace(given_trace)
            traceparent = continued or trace_context.start_trace(trace_id)
            model, route = policy.models[fields.model], request.route
            estimate = work_estimate_of(request, fields, facts.tenant, model.cost, self._expectations)
            estimate.adapter = adapter
            timeout_s = total_limit_s(model.timeouts, NO_TIMEOUTS if route is None else route.timeouts, agent_timeout_s)
            if client_timeout_s < timeout_s:
                timeout_s = client_timeout_s
            context = RequestContext(
                request, request_id, traceparent, estimate, facts, admitted, policy, now, timeout_s
            )
            context.priority = tenant.priority
            context.max_wait_s = model.queueing.max_wait_s
            context.own_deadline = timeout_s == client_timeout_s
            context.counted = counted
            context.asked_for = asked_for
            if location is not None:
                context.object_location = location
            elif route is not None and (route.previous_object or route.client_object):
                self._prefer_object(context, now)
            self._demand.offered(fields.model, admitted.permitted, facts.location.country)
        except BaseException:
            if counted:
                self._quotas.end(tenant.name)
            raise
        return context

    def context_from_peer(self, request: Request, now: float) -> RequestContext | Refusal:
        """Return the context of a request that another region's agent forwarded, or the refusal.

        The forwarded facts are accepted once, if they are signed for this region and for this request.
        """
        policy = self._config.policy
        route_context = self.route_context_of(request)
        if isinstance(route_context, Refusal) or policy is None:
            return route_context if isinstance(route_context, Refusal) else Refusal(Reason.NO_POLICY, _NO_POLICY)
        if not route_context.fits(request.method, request.target, request.body, request.length):
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "the route context is signed for another request")
        withdrawn = self.withdrawn(policy).refuse_start(route_context.model, request.route)
        if withdrawn is not None:
            return withdrawn
        if not self._used.first((request.header(_ROUTE_HEADER) or b"").decode("latin-1"), now):
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "the route context was used before")
        facts = RequestFacts(route_context.tenant, route_context.data_class, route_context.location)
        admitted = Mask(residency_class(frozenset(route_context.residency)))
        reader, route = request.reader, request.route
        location: ObjectLocation | None = None
        if reader is not None and _is_for_object(request, reader):
            location = self._location_at(request, reader.object_parameter, route_context.tenant, now)
            if location is None or location.region != self._region or location.model != route_context.model:
                return Refusal(Reason.NOT_FOUND, _NO_OBJECT)
        fields = request_fields(request)
        if isinstance(fields, Refusal):
            fields = RequestFields(route_context.model)
        # The origin replaces the name of a version or a fallback in the request, but not that of an adapter.
        adapter = "" if fields.model == route_context.model else fields.model
        fields.model = route_context.model
        estimate = self.estimate(request, fields, policy, route_context.tenant)
        estimate.adapter = adapter
        # Both times are from the origin's clock: the local clock may differ by seconds, which can exceed the deadline.
        timeout_s = route_context.deadline_at - route_context.issued_at
        request_id, traceparent = route_context.request_id, route_context.traceparent
        context = RequestContext(request, request_id, traceparent, estimate, facts, admitted, policy, now, timeout_s)
        context.route_context = route_context
        if location is not None:
            context.object_location = location
        elif route is not None and (route.previous_object or route.client_object):
            self._prefer_object(context, now)
        context.extends_text = route_context.extends_text
        model = policy.models.get(route_context.model)
        max_wait_s = DEFAULT_MAX_WAIT_S if model is None else model.queueing.max_wait_s
        context.max_wait_s = min(max_wait_s, max(0.0, route_context.queue_s))
        sender = policy.tenants.get(route_context.tenant)
        context.priority = sender.priority if sender is not None else 0
        return context

    def route_context_of(self, request: Request) -> RouteContext | Refusal:
        """Verify the route context in a request's headers."""
        policy = self._config.policy
        if policy is None:
            return Refusal(Reason.NO_POLICY, _NO_POLICY)
        token = request.header(_ROUTE_HEADER) or b""
        context = accept(token.decode("latin-1"), self._sessions, policy, self._region, time.time())
        if isinstance(context, RouteContext):
            return self.withdrawn(policy).refuse(context) or context
        return context

    def withdrawn(self, policy: Policy) -> Withdrawn:
        """Return what earlier policies contained and `policy`, which is in force, does not."""
        if policy is not self._policy:
            self._switch_policy(policy)
        return self._withdrawn

    def refuse_sender(self, request: Request, peer_ip: str) -> Refusal | None:
        """Return why the policy in force permits no request of a sender in this region; None if it permits some.

        Args:
            peer_ip: the address of the TCP peer.
        """
        tenant = self.tenant_of(request)
        if isinstance(tenant, Refusal):
            return tenant
        policy = self._policy
        assert policy is not None
        verdict = self.residency(policy, self._facts(tenant, request, peer_ip))
        return verdict if isinstance(verdict, Refusal) else None

    def tenant_of(self, request: Request) -> Tenant | Refusal:
        """Return the tenant of a request by its key, or the refusal if the key matches none."""
        policy = self._config.policy
        if policy is None:
            return Refusal(Reason.NO_POLICY, _NO_POLICY, retry_after_s=MIN_RETRY_S)
        if policy is not self._policy:
            self._switch_policy(policy)
        credential = credential_of(request)
        return credential if isinstance(credential, Refusal) else self._keyring.identify(credential)

    def admit_head(self, request: Request, now: float) -> AdmittedHead | Refusal:
        """Admit a request with a large body by its head. It counts towards its tenant's quota from here on.

        `context_from_client` takes the quota over; if the request ends before that, `release_head` releases it.
        """
        tenant = self.tenant_of(request)
        if isinstance(tenant, Refusal):
            return tenant
        started = self._quotas.start(tenant, now)
        if isinstance(started, Refusal):
            return started
        return AdmittedHead(tenant.name, holds_quota=started)

    def release_head(self, admitted: AdmittedHead) -> None:
        """Release the quota that an admitted head still holds. A second call does nothing."""
        if admitted.holds_quota:
            admitted.holds_quota = False
            self._quotas.end(admitted.tenant)

    def admit(self, policy: Policy, model: str, facts: RequestFacts) -> Mask | Refusal:
        """Return the residency mask of a request for `model`. Cached while the policy is in force."""
        if policy is not self._policy:
            self._switch_policy(policy)
        masks = self._masks_of(facts)
        mask = masks.get(model)
        if mask is None:
            if model not in policy.models:
                return Refusal(Reason.MODEL_NOT_FOUND, f"no model named {model!r} is served here")
            mask = masks[model] = self.residency(policy, facts)
        return mask

    def residency(self, policy: Policy, facts: RequestFacts) -> Mask | Refusal:
        """Return the residency mask of a request for any model. Cached while the policy is in force.

        Args:
            facts: the facts of the request, with the data class that `policy` assigns to the tenant.
        """
        if policy is not self._policy:
            self._switch_policy(policy)
        location = facts.location
        key = (facts.tenant, location.country, location.subdivision)
        verdict = self._residency.get(key)
        if verdict is None:
            if len(self._residency) >= MAX_ADMITTED:
                self._residency.clear()
            verdict = self._residency[key] = mask_at_origin(policy, self._region, facts)
        return verdict

    def count_demand(self, model: str, permitted: ResidencyClass, country: str | None) -> None:
        """Count a client's request as demand for `model`."""
        self._demand.offered(model, permitted, country)

    def release_quota(self, tenant: str) -> None:
        """Release the tenant's concurrency quota. Called exactly once per request that counts towards it."""
        self._quotas.end(tenant)

    def estimate(self, request: Request, fields: RequestFields, policy: Policy, tenant: str) -> WorkEstimate:
        """Estimate the work of a request."""
        model = policy.models.get(fields.model)
        return work_estimate_of(
            request, fields, tenant, model.cost if model is not None else DEFAULT_COST, self._expectations
        )

    def _switch_policy(self, policy: Policy) -> None:
        """Switch to another policy and clear all caches."""
        self._policy, self._keyring = policy, Keyring(policy)
        self._withdrawn.use(policy)
        self._senders.clear()
        self._masks.clear()
        self._residency.clear()

    def _identify(self, request: Request, key: SenderKey) -> Sender | Refusal:
        """Identify and locate a client. Cached, unless a header is repeated or the proxy chain is unusually long."""
        authorization, forwarded_for, location_header, peer_ip = key
        tenant = self._keyring.identify(authorization)
        if isinstance(tenant, Refusal):
            return tenant
        facts = self._facts(tenant, request, peer_ip)
        sender = Sender(tenant, facts, self._masks_of(facts))
        if not request.repeats and len(forwarded_for or b"") + len(location_header or b"") <= MAX_CACHED_CHAIN_BYTES:
            if len(self._senders) >= MAX_SENDERS:
                del self._senders[next(iter(self._senders))]
            self._senders[key] = sender
        return sender

    def _location_at(self, request: Request, place: str, tenant: str, now: float) -> ObjectLocation | None:
        """Return the location of the object whose identifier a request has at `place`; None if it is unknown."""
        object_id = object_in(request, place)
        return None if object_id is None else self.objects.find(tenant, object_id, now)

    def _prefer_object(self, context: RequestContext, now: float) -> None:
        """Set the location of the earlier object that a request names, or of the object that the client named."""
        request, route, tenant = context.request, context.request.route, context.facts.tenant
        assert route is not None
        if route.client_object:
            context.client_object = object_in(request, route.client_object) or ""
        context.object_location = self._location_at(request, route.client_object or route.previous_object, tenant, now)

    def _facts(self, tenant: Tenant, request: Request, peer_ip: str) -> RequestFacts:
        """Locate the client of a request."""
        location_headers = request.every(self._location_header)
        if location_headers and not self._locator.trusts(peer_ip):
            location_headers = []
        location = self._locator.locate_client(peer_ip, request.every(b"x-forwarded-for"), location_headers)
        return RequestFacts(tenant.name, tenant.data_class, location)

    def _masks_of(self, facts: RequestFacts) -> Masks:
        location = facts.location
        key = (facts.tenant, location.country, location.subdivision)
        masks = self._masks.get(key)
        if masks is None:
            if len(self._masks) >= MAX_ADMITTED:
                self._masks.clear()
            masks = self._masks[key] = {}
        return masks

    def _version(
        self, versions: ModelVersions, tenant: str, request: Request, fields: RequestFields
    ) -> RequestFields | Refusal:
        """Rewrite the request for the model version that serves it; a session always maps to the same version."""
        if not can_replace_model(request):
            if any(version.model == fields.model for version in versions.versions):
                return fields
            names = ", ".join(version.model for version in versions.versions)
            return Refusal(Reason.BAD_REQUEST, f"{fields.model} has several versions; request one of them: {names}")
        session = session_of(request, fields)
        place = session_position(tenant, fields.model, session) if session else self._rng.random() * WHOLE_PERCENT
        version = version_at(versions, place)
        if version == fields.model:
            return fields
        return replace_model(request, version) or Refusal(
            Reason.BAD_REQUEST,
            "the body's model name is repeated or contains escapes; send it once, without escapes",
        )


def _is_for_object(request: Request, reader: RouteReader) -> bool:
    """Whether a request is for an existing object. A query parameter that names the object is optional."""
    place = reader.object_parameter
    return place != "" and (not place.startswith("?") or object_in(request, place) is not None)


def _trace_ids(rng: Random) -> Iterator[str]:
    """Generate ids for `trace_context.start_trace`. Ids are drawn in batches to reduce the cost per id."""
    while True:
        digits = rng.randbytes(16 * IDS_AT_ONCE).hex()
        if _NO_ID not in digits:
            for at in range(0, len(digits), 32):
                yield digits[at : at + 32]
