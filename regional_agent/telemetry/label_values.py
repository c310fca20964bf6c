"""What the agent counts besides the outcomes of requests: values of metric labels, log fields and span attributes."""

from __future__ import annotations

from enum import StrEnum


class RequestKind(StrEnum):
    """Why a region served a request; the first five are `penstock.planning.plan.ArcReason`."""

    HOME = "home"
    SPILLOVER = "spillover"
    FAILOVER = "failover"
    FAILBACK = "failback"
    BATCH = "batch"
    FORWARDED = "forwarded"
    """Another agent forwarded the request; its origin counts the request too, under its own kind."""
    BURST = "burst"
    """A burst endpoint of the origin served the request."""


class QueueOutcome(StrEnum):
    """The outcome of a request's time in the admission queue."""

    DISPATCHED = "dispatched"
    """A slot became free, in this region or in another."""
    ABANDONED = "abandoned"
    """The request was rejected, its client disconnected, or its deadline expired."""


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
