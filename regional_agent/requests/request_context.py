"""The context of one request: its facts, and the state of its attempts."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from penstock.accounts.outcome_rules import RULES, Outcome
from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.cost_inputs import cost_inputs
from penstock.cost.work_estimate import MAX_SESSION_BYTES, estimate_work, name_session
from penstock.http.header_rules import SESSION_HEADERS
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Cost
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, residency_class
from penstock.pools.context_lengths import NeededTokens
from penstock.pools.placement import WorkEstimate
from penstock.retries.retry_rules import MAX_BROKEN, MAX_FAILED, RETRY_RULES, RetryReason
from penstock.routes.classify import RequestFields
from penstock.routes.object_locations import ObjectLocation
from penstock.routes.route import CostFields
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import NOTHING_TRIED
from penstock.wire.route_context import RouteContext
from regional_agent.tenants.principal import UNIDENTIFIED, Principal

if TYPE_CHECKING:
    from penstock.tenancy.budget_reservations import BudgetReservation
    from regional_agent.endpoints.endpoint_pool import EndpointSubset
    from regional_agent.http.messages import Request
    from regional_agent.ledger.held_files import HeldRecords
    from regional_agent.telemetry.tracing.request_trace import RequestTrace

NO_NAMES: Final[frozenset[str]] = frozenset()

_NO_COST: Final = CostFields()
_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
_CONNECT_FAILED: Final = RetryReason.CONNECT_FAILED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class RequestContext:
    """The facts of one request, and the state of its attempts. Times are on the agent's monotonic clock."""

    def __init__(
        self,
        request: Request,
        estimate: WorkEstimate,
        facts: RequestFacts,
        residency: Mask,
        policy: Policy,
        now: float,
    ) -> None:
        route = request.route
        self.request = request
        self.occupies_slot = route is None or route.occupies_slot
        """Whether the request occupies a slot of the endpoint that serves it."""
        self.is_repeatable = (route is None or route.repeatable) and not request.upgrade
        """Whether the request may be sent again if an engine may have begun to process it."""
        self.request_id = ""
        self.traceparent = ""
        """The `traceparent` header that the next target receives."""
        self.trace: RequestTrace | None = None
        """The trace of the request; None if the agent exports no spans."""
        self.estimate = estimate
        """The estimated work of the request."""
        self.model = estimate.model
        self.asked_for = estimate.model
        """The model that the client requested: `model`, or the name for which `model` is a version or fallback."""
        self.facts = facts
        self.principal: Principal = UNIDENTIFIED
        """The tenant and the API key of the request."""
        self.has_credential = True
        """Whether the headers of `request` identify the sender. False for requests that the agent itself sends for a
        sender that was authenticated before."""
        self.residency = residency
        self.only_region = ""
        """The region that alone may serve the request, whatever residency permits; empty for every permitted region."""
        self.subset: EndpointSubset | None = None
        """The endpoints of this region that may serve the request; None for all of them."""
        self.policy = policy
        """The policy under which the request was last authorized."""
        self.received_at = now
        self.deadline_at = inf
        self.own_deadline = False
        """Whether the client set the deadline, and not the fleet."""
        self.held_records: HeldRecords | None = None
        """Where the record of the request waits for its result to be in the store; None for requests of clients."""
        self.job_deadline_at: float | None = None
        """Time at which the job of the request is to be complete; None for requests of clients."""
        self.max_wait_s = DEFAULT_MAX_WAIT_S
        """Maximum queueing time (s) since `received_at`; for a forwarded request, the time that its origin left."""
        self.route_context: RouteContext | None = None
        """Set if another region's agent forwarded the request."""
        self.attempts = 0
        self.policy_digest = ""
        """Digest of the policy, and generation of the plan, by which the last target was selected."""
        self.plan_generation = 0
        self.queued_s = 0.0
        """Time (s) in the admission queue."""
        self.broken = 0
        """Number of engines of this region that failed, or became suspect, after they received the request."""
        self.failed_elsewhere = 0
        """Number of engines of other regions that failed after they received the request."""
        self.may_end_engines = False
        """Whether an engine broke the connection or stopped responding, so that the request may be the cause."""
        self.continuations = 0
        """Number of times that another target had to continue the response."""
        self.needed: NeededTokens | None = None
        """The context length that the request needs; None until it is needed."""
        self.context_class = 0
        """In a pool of several context lengths, the smallest one (tokens) that the request fits into; else 0."""
        self.extends_text = False
        """Whether the request continues an answer, which not every kind of engine can do."""
        self.priority = 0
        """The tenant's priority, or a lower one that the client asked for: higher values leave the queue first."""
        self.is_batch = False
        """Whether the priority is that of batch work: of jobs, and of tenants of a batch tier."""
        self.max_use = 1.0
        """Part (0-1) of the model's slots in a region up to which the request may start; below 1 for batch requests."""
        self.preemptions = 0
        """Number of times that requests with a priority took the slot of the request, which is batch work."""
        self.weight = 1.0
        """The tenant's share among the tenants of its priority."""
        self.may_fall_back = True
        """Whether the fallback of the model may serve the request."""
        self.is_in_ledger = False
        """Whether the ledger has the start of the request and not its end."""
        self.reservation: BudgetReservation | None = None
        """What the request reserved of budgets at this agent; None if nothing limits its sender."""
        self.object_location: ObjectLocation | None = None
        """Location of the object that the request is for, or of the earlier object that it names; None for none."""
        self.client_object = ""
        """Identifier of the object in the request, if the client chose it; empty for none."""
        self.failed_because = _ENGINE_FAILED
        """Why the last attempt did not start."""
        self.failed_as: Outcome | None = None
        """The outcome of the last attempt that an engine failed which had received the request; None without one."""
        self.reported_error = ""
        """The error with which an engine responded, because of which the request left its target; empty for none."""
        self.lacks_model = False
        """Whether the last engine of this region has responded that it lacks the model."""
        self.rests_until = 0.0
        """The queue does not offer the request to a target before this time (s)."""
        self.busy_endpoints = NO_NAMES
        """Endpoints that rejected the request as full: if no other endpoint is left, the pool counts as saturated."""
        self.tried_endpoints = NO_NAMES
        self.tried_regions = NOTHING_TRIED
        """Regions that did not start the request, with the reason. Most requests have only one attempt."""

    @property
    def is_for_object(self) -> bool:
        """Whether the request is for an existing object, so that no other endpoint can serve it."""
        reader = self.request.reader
        return reader is not None and reader.object_parameter != "" and self.object_location is not None

    @property
    def needs_object(self) -> bool:
        """Whether only the endpoint that has the request's object can serve the request: one for the object itself, or
        one that continues from it. An endpoint is only preferred for an identifier that the client chose."""
        if self.object_location is None:
            return False
        route = self.request.route
        return self.is_for_object or (route is not None and route.continues_objects)

    @property
    def failures_left(self) -> int:
        """Number of engines that may still fail the request, in all regions."""
        limit = MAX_BROKEN if self.may_end_engines else MAX_FAILED
        return limit - self.broken - self.failed_elsewhere

    @property
    def left_region(self) -> bool:
        """Whether as many engines of this region have failed as may fail the request here."""
        return self.broken >= MAX_BROKEN

    def failed_here(self, more: int = 0) -> int:
        """Number of engines of this region that have failed the request, and `more`, for the agent of its origin.

        It is MAX_FAILED if engines broke, and no other may fail the request in any region: Envoy adds no numbers.
        """
        return MAX_FAILED if self.may_end_engines and self.failures_left <= more else self.broken + more

    def failed_with(self, why: RetryReason) -> None:
        """Record the outcome of an attempt that failed, if an engine that received the request is the cause."""
        outcome = RETRY_RULES[why].outcome
        if RULES[outcome].charges_endpoint and why is not _CONNECT_FAILED:
            self.failed_as = outcome

    def engine_reported(self, error: str) -> None:
        """Record an error with which an engine responded."""
        self.reported_error, self.failed_as = error, Outcome.ENGINE_ERROR

    def attempt_failed(self, reason: str, now: float) -> None:
        """Record in the trace that an attempt ended at `now` (s) and that the request continues."""
        if self.trace is not None:
            self.trace.attempt_failed(reason, now)
            self.traceparent = self.trace.traceparent

    def preempted(self) -> None:
        """Record that a request with a priority took the slot; this attempt does not count as one."""
        self.preemptions += 1
        self.attempts -= 1

    def permit(self, mask: Mask) -> None:
        """Set the regions that may serve the request, within `only_region`."""
        only = self.only_region
        if only and only in mask.permitted.regions:
            mask = Mask(residency_class(frozenset({only})), mask.rejected)
        self.residency = mask

    def keep_in(self, region: str, subset: EndpointSubset | None) -> None:
        """Let only `region` serve the request, and of its endpoints only `subset`; None for all of them."""
        self.only_region, self.subset = region, subset
        self.permit(self.residency)

    def tried(self, region: str, why: Reason) -> None:
        """Record that a region did not start the request."""
        self.tried_regions = {**self.tried_regions, region: why}

    def forget_tries(self) -> None:
        """Clear the attempts and the excluded targets, for a fallback model or for the continuation of a stream."""
        self.attempts = 0
        self.rests_until = 0.0
        self.tried_regions = NOTHING_TRIED
        self.tried_endpoints = self.busy_endpoints = NO_NAMES


def work_estimate_of(
    request: Request, fields: RequestFields, tenant: str, cost: Cost, expectations: CostEstimator
) -> WorkEstimate:
    """Estimate the work of a request, and compute its cache keys, from the part of the request that has arrived.

    Args:
        cost: of the model, by policy.
    """
    body, cost_fields = request.body, cost_fields_of(request)
    size_bytes = len(body) if request.whole else request.length or len(body)
    cost = cost.on_route(cost_fields)
    inputs = cost_inputs(cost_fields, fields.values, cost.unit, size_bytes)
    estimate = estimate_work(fields, body, tenant, cost, inputs, expectations)
    session = session_of(request, fields)
    if session:
        name_session(estimate, session)
    return estimate


def cost_fields_of(request: Request) -> CostFields:
    """The cost fields of the route of a request."""
    return _NO_COST if request.route is None else request.route.cost


def session_of(request: Request, fields: RequestFields) -> bytes:
    """The name of the conversation that a request belongs to; empty where it has none."""
    headers = request.by_name or request.index()
    for name in SESSION_HEADERS:
        header = headers.get(name)
        if header:
            return header[:MAX_SESSION_BYTES]
    return bytes(memoryview(fields.session)[:MAX_SESSION_BYTES]) if fields.session else b""
