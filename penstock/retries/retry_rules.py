"""Why a request is retried, and the outcome of the attempt that failed, whose rules (`outcome_rules`) apply."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from penstock.accounts.outcome_rules import Outcome

RETRIED_STATUSES: Final = frozenset({500, 502})
"""Statuses of engines that failed. Another engine would respond with the same 501 or 505; after 504 the engine may
still run the request; 503 is a rejection."""

UNAUTHORIZED: Final = frozenset({401, 403})
"""Statuses of an engine that requires a credential, or rejects the configured one. Engines receive no credential of a
client, so that the cause is the endpoint if another endpoint serves the request."""

MAX_ATTEMPTS: Final = 6
"""Maximum number of attempts per request; each failed connection costs at most a connect timeout. A request that
endpoints rejected as busy is sent again in its turn, for as long as it may wait."""

MAX_FAILED: Final = 3
"""Maximum number of engines, in all regions together, that fail a request after they received it."""

MAX_BROKEN: Final = 2
"""Maximum number of engines of one region that fail a request after they received it; also the maximum in all regions
together once an engine broke the connection or stopped responding, since the request may end engines."""


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
    """The engine rejected the endpoint's credential (401, 403), or requires one, and another endpoint was ready."""
    ENGINE_ERROR = "engine_error"
    """The engine responded with an error: status 500 or 502, or status 200 and an error in the response."""
    MODEL_MISSING = "model_missing"
    """The engine responded with 404, and another endpoint was ready; elsewhere, and with 400, if it states that."""
    USAGE_REFUSED = "usage_refused"
    """The engine refused to report the usage of a stream, for which the agent asked; the request was sent unchanged."""
    PEER_REFUSED = "peer_refused"
    """The agent of the serving region rejected the request with a typed reason."""
    ENDPOINT_SUSPECT = "endpoint_suspect"
    """The endpoint made no progress and became suspect before it sent a byte of a response."""
    PREEMPTED = "preempted"
    """The agent ended the batch request, because a request with a priority needed its slot."""


OF_ENDPOINTS: Final = frozenset({RetryReason.MODEL_MISSING, RetryReason.CREDENTIAL_REJECTED})
"""Reasons for which an endpoint is charged once another one has served the request, unless it lacks a route alone."""

OUTCOMES: Final[dict[RetryReason, Outcome]] = {
    RetryReason.CONNECT_FAILED: Outcome.ENGINE_CUT,
    RetryReason.CLOSED_EARLY: Outcome.ENGINE_CUT,
    RetryReason.STALE_CONNECTION: Outcome.REFUSED,
    RetryReason.ENGINE_BUSY: Outcome.REFUSED,
    RetryReason.CREDENTIAL_REJECTED: Outcome.ENGINE_ERROR,
    RetryReason.ENGINE_ERROR: Outcome.ENGINE_ERROR,
    RetryReason.MODEL_MISSING: Outcome.REFUSED,
    RetryReason.USAGE_REFUSED: Outcome.REFUSED,
    RetryReason.PEER_REFUSED: Outcome.REFUSED,
    RetryReason.ENDPOINT_SUSPECT: Outcome.REFUSED,
    RetryReason.PREEMPTED: Outcome.DEFERRED,
}
"""The outcome that an attempt has if it is the last one."""
