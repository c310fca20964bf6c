"""Reasons for rejections: the stable, machine-readable codes that every decision uses."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.tenancy.exceeded_budget import ExceededBudget


class Reason(StrEnum):
    """A stable code. Clients, metrics and audits rely on the values, so they are never renamed after a release."""

    # the request itself
    INVALID_API_KEY = "invalid_api_key"
    TOO_MANY_FAILURES = "too_many_failures"
    TENANT_SUSPENDED = "tenant_suspended"
    TIER_UNKNOWN = "tier_unknown"
    ROUTE_NOT_PERMITTED = "route_not_permitted"
    MODEL_NOT_FOUND = "model_not_found"
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UPGRADE_REQUIRED = "upgrade_required"
    NOT_OFFERED = "not_offered"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_REQUESTS = "too_many_requests"
    LOOP_DETECTED = "loop_detected"
    NO_POLICY = "no_policy"
    SHUTTING_DOWN = "shutting_down"
    LEDGER_FULL = "ledger_full"
    STORE_UNAVAILABLE = "store_unavailable"
    NOT_KEPT = "not_kept"
    # mask
    RESIDENCY_NOT_ALLOWED = "residency_not_allowed"
    RESIDENCY_DENIED = "residency_denied"
    LOCATION_UNKNOWN = "location_unknown"
    NO_PERMITTED_REGION = "no_permitted_region"
    MISDIRECTED = "misdirected"
    # budgets
    QUOTA_EXCEEDED = "quota_exceeded"
    # region selection
    REGION_UNKNOWN = "region_unknown"
    REGION_FAILED = "region_failed"
    REGION_DRAINING = "region_draining"
    MODEL_NOT_READY = "model_not_ready"
    SPILLOVER_LIMIT = "spillover_limit"
    NO_CREDIT = "no_credit"
    NOT_WORTH_THE_TRIP = "not_worth_the_trip"
    NO_IDLE_SLOTS = "no_idle_slots"
    COSTS_MORE = "costs_more"
    ALREADY_TRIED = "already_tried"
    UNREACHABLE = "unreachable"
    NONE_READY = "none_ready"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    # endpoint selection
    ENDPOINT_NOT_READY = "endpoint_not_ready"
    ENDPOINT_EJECTED = "endpoint_ejected"
    ENDPOINT_SUSPECT = "endpoint_suspect"
    ENDPOINT_DRAINING = "endpoint_draining"
    ENDPOINT_SKEWED = "endpoint_skewed"
    ENDPOINT_FULL = "endpoint_full"
    BURST_WITHOUT_PRICE = "burst_without_price"
    BURST_NOT_NEEDED = "burst_not_needed"
    BURST_COSTS_MORE = "burst_costs_more"
    SATURATED = "saturated"
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    STREAM_STALLED = "stream_stalled"
    # a forwarded request, at the serving region
    BAD_ROUTE_CONTEXT = "bad_route_context"
    ROUTE_CONTEXT_EXPIRED = "route_context_expired"
    TOO_MANY_HOPS = "too_many_hops"
    DEADLINE_PASSED = "deadline_passed"


class Rejection(msgspec.Struct, frozen=True):
    """One region or endpoint that was considered and not chosen, and the reason."""

    what: str
    """Name of the region or endpoint."""
    reason: Reason
    detail: str = ""
    """Details for people: the rule's name and source, the number that was over a limit."""


class EndpointChoice(msgspec.Struct, frozen=True):
    """The chosen endpoint."""

    index: int | None
    """Index of the endpoint in the sequence of candidates; None if no candidate accepts the request."""
    rejected: tuple[Rejection, ...] = ()
    """The reason of each candidate, if no candidate accepts the request; else empty."""


class ConsideredEndpoint(msgspec.Struct, frozen=True):
    """One endpoint as endpoint selection compares it."""

    name: str
    done_s: float | None
    """Expected time (s) until the endpoint completes the request, plus the delay that the request causes to the other
    requests on the endpoint; None if the endpoint does not accept the request."""
    in_flight: int
    """Number of requests on the endpoint now."""
    reason: Reason | None = None
    """Why the endpoint does not accept the request; None if it does."""
    holds: bool = False
    """Whether the endpoint holds the session or prefix of the request, or has its model loaded: the endpoint may then
    be chosen although another endpoint would complete the request slightly earlier."""
    near: bool = False
    """Whether the endpoint is in the agent's zone: it may then be chosen although another endpoint would complete the
    request slightly earlier."""
    detail: str = ""
    """Details of `reason` for operators, such as the override that drains the endpoint."""


class Refusal(msgspec.Struct, frozen=True):
    """The refusal of a request, with the rejections of all regions or endpoints that were considered.

    The path of a request tests for the type that it expects otherwise: `isinstance(x, Refusal)` of anything else asks
    the metaclass of msgspec, which takes a tenth of a microsecond.
    """

    reason: Reason
    detail: str
    rejected: tuple[Rejection, ...] = ()
    retry_after_s: float | None = None
    """Time (s) after which the client should retry; None if a retry cannot succeed."""
    try_regions: tuple[str, ...] = ()
    """Entry regions that may accept this request instead, the best first."""
    try_urls: tuple[str, ...] = ()
    """Entry URLs of these regions, in this order; regions without one are left out."""
    allow: tuple[str, ...] = ()
    """The methods of the path, if the request has another method; else empty."""
    tenant: str = ""
    """The tenant of the request, for the access log; empty where it is not known."""
    exceeded: ExceededBudget | None = None
    """The budget that is used up; None for other refusals."""
    may_be_by_change: bool = False
    """Whether the last change of the rules of residency or entries may be the cause (`decision.may_be_by_change`)."""
    awaits_lease: bool = False
    """Whether the request should wait for a lease of a budget, and then be handled again."""
