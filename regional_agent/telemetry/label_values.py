"""What the agent counts besides the outcomes of requests: values of metric labels, log fields and span attributes."""

from __future__ import annotations

from enum import StrEnum


class RequestKind(StrEnum):
    """Why a region served a request; the first four are `penstock.planning.plan.ArcReason`."""

    HOME = "home"
    SPILLOVER = "spillover"
    FAILOVER = "failover"
    FAILBACK = "failback"
    FORWARDED = "forwarded"
    """Another agent forwarded the request; its origin counts the request too, under its own kind."""


class QueueOutcome(StrEnum):
    """The outcome of a request's time in the admission queue."""

    DISPATCHED = "dispatched"
    """A slot became free, in this region or in another."""
    ABANDONED = "abandoned"
    """The request was rejected, its client disconnected, or its deadline expired."""


class RetryReason(StrEnum):
    """Why a request that had not started was retried."""

    CONNECT_FAILED = "connect_failed"
    """The connection to the endpoint or peer could not be established."""
    CLOSED_EARLY = "closed_early"
    """The connection closed before any response."""
    STALE_CONNECTION = "stale_connection"
    """A pooled connection was closing; the request was retried on a new connection to the same target."""
    ENGINE_BUSY = "engine_busy"
    """The engine was overloaded and rejected the request before processing started."""
    CREDENTIAL_REJECTED = "credential_rejected"
    """The engine rejected the endpoint's credential (401, 403)."""
    ENGINE_ERROR = "engine_error"
    """The engine responded with an error: status 500 or 502, or status 200 and an error in the response."""
    MODEL_MISSING = "model_missing"
    """The engine responded with 404, and another endpoint of the pool was ready."""
    USAGE_REFUSED = "usage_refused"
    """The engine refused to report the usage of a stream, for which the agent asked; the request was sent unchanged."""
    PEER_REFUSED = "peer_refused"
    """The agent of the serving region rejected the request with a typed reason."""
    ENDPOINT_SUSPECT = "endpoint_suspect"
    """The endpoint made no progress and became suspect before it sent a byte of a response."""


class ContinuationOutcome(StrEnum):
    """The outcome of a failed stream of a model with `continue_streams`."""

    RESUMED = "resumed"
    """Another target continued the response, or the response had reached the token limit of the request."""
    NOT_CONTINUABLE = "not_continuable"
    """The response contains more than text, or is too long."""
    OVER_BUDGET = "over_budget"
    """The limit of continuations of one request, or the retry budget, was used up."""
    NO_TARGET = "no_target"
    """No permitted target was able to continue the response."""
