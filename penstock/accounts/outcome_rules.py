"""How a request can end, and what each outcome means for everything that reads it.

Attempts, retries, evidence, objectives, usage and alerts read RULES. Evidence, objectives and health must not be moved
by a client alone: a stranger's request, a request that its client cancelled, or a deadline that its client chose.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from penstock.answers.answer_errors import AnswerError, ErrorCause
from penstock.routing.reasons import Reason


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    """The response is complete; or the client closed the connection after it received the end of the answer."""
    CACHED = "cached"
    """The response was kept from an identical request: no engine ran, and no GPU time was used."""
    CLIENT_LEFT = "client_left"
    """The client disconnected before the end of the response."""
    CLIENT_ERROR = "client_error"
    """The engine responded with 4xx, 501 or an error that the request caused; or the request itself was invalid, or its
    body did not arrive in time."""
    EXPIRED = "expired"
    """The deadline that the client set passed before the end of the response; or a time limit passed, and the client
    had read the response more slowly than it arrived."""
    REFUSED = "refused"
    """The request was authorized, and no region could serve it; no engine that had received it failed it."""
    DEFERRED = "deferred"
    """No slot was idle for batch work, which runs in idle slots only; or a request with a priority took the slot. The
    agent sends requests of jobs again later."""
    ENGINE_ERROR = "engine_error"
    """The engine responded with 5xx, with a redirection, or, with status 200, with an error, no answer of the API, or
    nothing but an answer that it aborted; also where no other target could serve the request, which is then refused."""
    ENGINE_CUT = "engine_cut"
    """The response began and ended early: the connection closed, its data was invalid, or its finish reason states that
    the engine aborted the answer. Also where the connection broke before a response, and no other target could serve
    the request, which is then refused."""
    STALLED = "stalled"
    """The engine did not begin to respond in time, or stopped sending during the response."""
    TIMED_OUT = "timed_out"
    """A time limit of the fleet passed before the end of the response."""
    REVOKED = "revoked"
    """A change ended the open request: its key was revoked, its tenant suspended, its model or its permission removed,
    or residency forbids a region that it uses."""
    SHUTDOWN = "shutdown"
    """The agent stopped before the end of the response."""


class Counts(StrEnum):
    """How an outcome counts in a share of successes."""

    NOT = "no"
    SUCCESS = "success"
    FAILURE = "failure"
    IF_LATE = "if late"
    """As a failure if the client waited longer for the first byte than the objective permits; else not at all."""


class OutcomeRules(msgspec.Struct, frozen=True):
    """What an outcome means."""

    charges_endpoint: bool
    """Whether the endpoint is charged: the request counts as a failure in the endpoint's outlier detection."""
    may_retry: bool
    """Whether the request may be sent to another target, as long as the client has received no byte of a response.
    A stalled request is moved before the time limit if its endpoint is suspect; at the limit, it may have run."""
    evidence: Counts
    """How the request counts in the evidence of a rollout."""
    objectives: Counts
    """How the request counts in service objectives. Failures use up the error budget."""
    charges_tenant: bool
    """Whether the tokens that the client received are the tenant's usage. Otherwise they are overhead of the fleet."""


_NOT, _SUCCESS, _FAILURE, _IF_LATE = Counts.NOT, Counts.SUCCESS, Counts.FAILURE, Counts.IF_LATE

RULES: Final[dict[Outcome, OutcomeRules]] = {
    #                                  endpoint, retry, evidence, objectives, tenant
    Outcome.OK: OutcomeRules(False, False, _SUCCESS, _SUCCESS, True),
    Outcome.CACHED: OutcomeRules(False, False, _NOT, _SUCCESS, True),
    Outcome.CLIENT_LEFT: OutcomeRules(False, False, _NOT, _IF_LATE, True),
    Outcome.CLIENT_ERROR: OutcomeRules(False, False, _NOT, _NOT, True),
    Outcome.EXPIRED: OutcomeRules(False, False, _NOT, _IF_LATE, True),
    Outcome.REFUSED: OutcomeRules(False, True, _FAILURE, _FAILURE, False),
    Outcome.DEFERRED: OutcomeRules(False, True, _NOT, _NOT, False),
    Outcome.ENGINE_ERROR: OutcomeRules(True, True, _FAILURE, _FAILURE, False),
    Outcome.ENGINE_CUT: OutcomeRules(True, True, _FAILURE, _FAILURE, False),
    Outcome.STALLED: OutcomeRules(True, False, _FAILURE, _FAILURE, False),
    Outcome.TIMED_OUT: OutcomeRules(False, False, _FAILURE, _FAILURE, True),
    Outcome.REVOKED: OutcomeRules(False, False, _NOT, _NOT, True),
    Outcome.SHUTDOWN: OutcomeRules(False, False, _NOT, _FAILURE, False),
}
"""What each outcome means."""

_OF_TARGETS: Final = frozenset({Reason.NONE_READY, Reason.ENGINE_FAILED})
"""Reasons of refusals that state that no target is left: the last one that failed the request is the cause."""

_REVOCATIONS: Final = frozenset(
    {
        Reason.INVALID_API_KEY,
        Reason.TENANT_SUSPENDED,
        Reason.TIER_UNKNOWN,
        Reason.ROUTE_NOT_PERMITTED,
        Reason.LOCATION_UNKNOWN,
        Reason.NO_PERMITTED_REGION,
        Reason.MISDIRECTED,
        Reason.RESIDENCY_DENIED,
        Reason.MODEL_NOT_FOUND,
    }
)
"""Reasons for which a change of policy or of a tenant ends a request."""

_CLIENT_ERRORS: Final = frozenset(
    {
        Reason.BAD_REQUEST,
        Reason.CONTEXT_LENGTH_EXCEEDED,
        Reason.NOT_FOUND,
        Reason.BODY_TOO_LARGE,
        Reason.REQUEST_TIMEOUT,
        Reason.NOT_OFFERED,
    }
)

_OUTCOMES: Final[dict[Reason, Outcome]] = {
    **dict.fromkeys(_REVOCATIONS, Outcome.REVOKED),
    **dict.fromkeys(_CLIENT_ERRORS, Outcome.CLIENT_ERROR),
    Reason.DEADLINE_PASSED: Outcome.TIMED_OUT,
    Reason.ENGINE_TIMEOUT: Outcome.STALLED,
    Reason.STREAM_STALLED: Outcome.STALLED,
    Reason.SHUTTING_DOWN: Outcome.SHUTDOWN,
}

FAULTS_OF_POLICY: Final = frozenset(
    {
        Reason.RESIDENCY_NOT_ALLOWED,
        Reason.RESIDENCY_DENIED,
        Reason.LOCATION_UNKNOWN,
        Reason.NO_PERMITTED_REGION,
        Reason.MISDIRECTED,
    }
)
"""Refusals before routing that count as failures in the evidence of a rollout: requests of known tenants that an error
in rules of residency or of entries refuses. They count only if a change may be the cause
(`Refusal.may_be_by_change`): a tenant can send requests to forbidden regions at will.

Requests without a key, those of the anonymous tenant included, an unknown key and an unknown model do not count,
because any client can send them, and a policy that removes a key or a model refuses such requests on purpose. A used-up
quota does not count, because a tenant reaches it at will."""


def outcome_of_refusal(
    reason: Reason, *, failed_as: Outcome | None = None, own_deadline: bool = False, is_batch: bool = False
) -> Outcome:
    """The outcome of a request that is refused after it was authorized.

    Only authorization refuses for the reasons of `_REVOCATIONS`, so a request with one of these reasons was authorized
    under an earlier policy.

    Args:
        failed_as: the outcome of the last attempt that an engine failed which had received the request; None without.
        own_deadline: whether the deadline of the request was set by its client.
        is_batch: whether the request has the batch priority.
    """
    if is_batch and reason is Reason.SATURATED:
        return Outcome.DEFERRED
    if failed_as is not None and reason in _OF_TARGETS:
        return failed_as
    outcome = _OUTCOMES.get(reason, Outcome.REFUSED)
    return Outcome.EXPIRED if own_deadline and reason is Reason.DEADLINE_PASSED else outcome


def outcome_of_failure(reason: Reason, *, own_deadline: bool = False) -> Outcome:
    """The outcome of a response that began and ended early, by its reason.

    Args:
        own_deadline: whether the deadline of the request was set by its client.
    """
    outcome = _OUTCOMES.get(reason, Outcome.ENGINE_CUT)
    return Outcome.EXPIRED if own_deadline and reason is Reason.DEADLINE_PASSED else outcome


def outcome_of_error(error: AnswerError) -> Outcome:
    """The outcome of a response with status 200 that reports an error."""
    return Outcome.CLIENT_ERROR if error.cause is ErrorCause.REQUEST else Outcome.ENGINE_ERROR


def outcome_of_status(status: int) -> Outcome:
    """The outcome of a complete response without an error in its body."""
    if status < 400:
        return Outcome.OK
    return Outcome.CLIENT_ERROR if status < 500 or status == 501 else Outcome.ENGINE_ERROR
