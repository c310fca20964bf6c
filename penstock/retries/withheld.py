"""Why a response is withheld at its head: its target did not start the request, failed it, or may lack its model."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.answers.missing_model import STATUSES as MISSING_STATUSES
from penstock.answers.stream_usage_flag import REFUSING_STATUSES
from penstock.retries.failed_attempt import FailedAttempt, OtherTargets, may_move, may_move_here
from penstock.retries.retry_rules import RETRIED_STATUSES, UNAUTHORIZED
from penstock.routes.route import Route
from penstock.routing.reasons import Reason

_READS: Final = frozenset({b"GET", b"HEAD"})


class Withheld(Enum):
    """Why the response of a target that stated no `Reason` is read, and not forwarded."""

    USAGE_REFUSED = auto()
    """The engine refused the flag that the agent set, or reports the usage in a stream whose events are encoded."""
    MODEL_MISSING = auto()
    """The engine responded with 404, and another endpoint of the region is ready."""
    UNAUTHORIZED = auto()
    """The engine responded with 401 or 403 although no credential is configured, and another endpoint is ready."""
    MODEL_MAY_BE_MISSING = auto()
    """The engine responded with 400, or the last one of the region with 404; the body shows whether it lacks the
    model."""
    ENGINE_ERROR = auto()
    """The engine failed, and another target may not."""
    REDIRECTED = auto()
    """The engine responded with a redirect in place of an answer."""
    UNEXPLAINED_503 = auto()
    """The engine responded with 503 although it should have a free slot; the body shows whether it failed."""


NEEDS_BODY: Final = (
    Withheld.UNEXPLAINED_503,
    Withheld.ENGINE_ERROR,
    Withheld.MODEL_MISSING,
    Withheld.MODEL_MAY_BE_MISSING,
    Withheld.USAGE_REFUSED,
)
"""Why the body of a response is kept: it decides what follows, or the client receives it at the end."""


MAY_LACK_MODEL: Final = (Withheld.MODEL_MISSING, Withheld.MODEL_MAY_BE_MISSING, Withheld.USAGE_REFUSED)
"""Why a response is withheld whose body may state that the engine lacks the model."""


class WithheldAnswer(NamedTuple):
    """What was read of a response that was withheld."""

    status: int
    text: bytes
    """The body without its coding, or the beginning of it."""
    is_whole: bool
    """Whether the whole body was read."""
    lacks_model: bool = False
    """Whether the body states that the engine lacks the model."""


class ResponseFacts(NamedTuple):
    """The head of a response, as far as it decides whether the response may be for the client."""

    status: int
    rejected_because: Reason | None
    """Why the target rejected the request without starting it, as the head states it; None if it does not."""
    asked_usage: bool
    """Whether the agent asked for more of the stream than the client did, which an engine may refuse."""
    shows_usage: bool
    """Whether the stream is encoded, so that the usage that only the agent asked for cannot be removed."""
    route: Route | None
    method: bytes


def withheld_because(head: ResponseFacts, failed: FailedAttempt, others: OtherTargets) -> Reason | Withheld | None:
    """Why a response is not for the client: its target did not start the request, or failed; None if it may be."""
    status, reason = head.status, head.rejected_because
    refuses = status in REFUSING_STATUSES and not (failed.from_peer and failed.is_charged)
    if head.asked_usage and (refuses or (head.shows_usage and failed.may_run_again)):
        return reason or Withheld.USAGE_REFUSED
    if status == 503 and failed.is_charged:
        return Withheld.UNEXPLAINED_503
    if 300 <= status < 400 and not failed.from_peer and _is_no_answer(head):
        return Withheld.REDIRECTED
    if reason is not None or status < 400:
        return reason
    if status in MISSING_STATUSES and not failed.from_peer:
        missing = _may_lack_model(status, failed, others)
        if missing is not None:
            return missing
    if status in UNAUTHORIZED and not failed.from_peer and may_move_here(failed, others):
        return Withheld.UNAUTHORIZED
    if (failed.from_peer or status in RETRIED_STATUSES) and may_move(failed, others):
        return Withheld.ENGINE_ERROR
    return None


def _may_lack_model(status: int, failed: FailedAttempt, others: OtherTargets) -> Withheld | None:
    """Why a 404 or 400 may not be for the client: another endpoint of the region is ready, or one elsewhere; None if it
    is. A 400 mostly is the client's mistake, so that its body decides."""
    if may_move_here(failed, others):
        return Withheld.MODEL_MISSING if status == 404 else Withheld.MODEL_MAY_BE_MISSING
    if not failed.can_move:
        return None
    may_leave = failed.is_forwarded or others.is_ready(leaves_region=False)
    return Withheld.MODEL_MAY_BE_MISSING if may_leave and others.budget_allows() else None


def _is_no_answer(head: ResponseFacts) -> bool:
    """Whether a redirection is an error: no API of a preset has one. A route of the policy may redirect to a store of
    objects, and 304 responds to a condition of a client that reads."""
    is_preset = head.route is not None and not head.route.source
    return is_preset and (head.status != 304 or head.method not in _READS)
