"""Why a request is retried, what that means, and how often it may be retried."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from penstock.accounts.outcome_rules import Outcome

RETRIED_STATUSES: Final = frozenset({500, 502})
"""Statuses of engines that failed. Another engine would respond with the same 501 or 505; after 504 the engine may
still run the request; 503 is a rejection."""

BUSY_STATUSES: Final = frozenset({429, 503, 529})
"""Statuses with which engines reject a request that they have not started; 529 is that of Anthropic's API."""

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


class RetryRule(NamedTuple):
    """What a retry means."""

    outcome: Outcome
    """The outcome of the failed attempt, if it is the last one."""
    needs_repeatable: bool
    """Whether an engine may have begun the request, so that the route must permit that it runs twice. The stall of a
    suspect endpoint, and the reason of a region that refused, state that themselves (`next_step`)."""
    spends_budget: bool
    """Whether the retry takes one from the budget: not where the agent, and no target, is the cause."""


RETRY_RULES: Final[dict[RetryReason, RetryRule]] = {
    #                                            outcome, repeatable, budget
    RetryReason.CONNECT_FAILED: RetryRule(Outcome.ENGINE_CUT, False, True),
    RetryReason.CLOSED_EARLY: RetryRule(Outcome.ENGINE_CUT, True, True),
    RetryReason.STALE_CONNECTION: RetryRule(Outcome.REFUSED, True, False),
    RetryReason.ENGINE_BUSY: RetryRule(Outcome.REFUSED, False, True),
    RetryReason.CREDENTIAL_REJECTED: RetryRule(Outcome.ENGINE_ERROR, False, True),
    RetryReason.ENGINE_ERROR: RetryRule(Outcome.ENGINE_ERROR, True, True),
    RetryReason.MODEL_MISSING: RetryRule(Outcome.REFUSED, False, True),
    RetryReason.USAGE_REFUSED: RetryRule(Outcome.REFUSED, False, False),
    RetryReason.PEER_REFUSED: RetryRule(Outcome.REFUSED, False, True),
    RetryReason.ENDPOINT_SUSPECT: RetryRule(Outcome.REFUSED, False, True),
    RetryReason.PREEMPTED: RetryRule(Outcome.DEFERRED, True, False),
}
"""What the retries mean, by their reason."""
