"""What is known of an attempt that failed before the client received a byte, and whether its request may move on."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.accounts.outcome_rules import RULES, Outcome
from penstock.health.progress import Stall
from penstock.retries.retry_rules import MAX_ATTEMPTS, MAX_BROKEN, RetryReason


class OtherTargets(Protocol):
    """What else may serve the request of a failed attempt. Each question is asked only where the answer decides."""

    def is_ready_here(self) -> bool:
        """Whether another endpoint of the region is ready."""

    def is_ready(self, *, leaves_region: bool) -> bool:
        """Whether another target is ready; of a forwarded request, in this region.

        Args:
            leaves_region: whether no further endpoint of the region of the attempt may receive the request.
        """

    def is_ready_beside_suspect(self) -> bool:
        """Whether another target is ready that has not rejected the request either; True for a forwarded request,
        whose origin knows others."""

    def is_awaited(self) -> bool:
        """Whether the request may wait for another target, of which none is ready."""

    def is_at_fault(self) -> bool:
        """Whether the target of the attempt is the cause of its error, and not the requests of the tenant."""

    def budget_allows(self) -> bool:
        """Whether the retry budget allows one more retry."""


class FailedAttempt(NamedTuple):
    """A failed attempt and its request, as far as they decide what follows."""

    is_whole: bool
    """Whether the body of the request has arrived."""
    is_kept: bool
    """Whether the body is kept, so that the request can be sent again."""
    is_repeatable: bool
    """Whether the request may be sent again if an engine may have begun to process it."""
    needs_object: bool
    """Whether only the endpoint that has the request's object can serve the request."""
    is_for_object: bool
    """Whether the request is for an existing object."""
    is_forwarded: bool
    """Whether another region's agent sent the request, which knows further regions."""
    attempts: int
    """Number of attempts so far, with this one."""
    broken: int
    """Number of engines of this region that failed the request before this attempt."""
    failed_elsewhere: int
    """Number of engines of other regions that failed the request before this attempt."""
    failures_left: int
    """Number of engines that may still fail the request, in all regions, with that of this attempt."""
    reported_error: str
    """The error with which an engine responded last; empty for none."""
    from_peer: bool
    """Whether the target is a peer region."""
    region: str
    failed_engines: int
    """Number of engines that failed the request in this attempt."""
    is_charged: bool
    """Whether the engine responded with an error that counts against it."""
    accepts_in_s: float
    """Retry-After (s) of a target that is full; 0 without one."""
    rejected_as: RetryReason
    """Why the request is retried after a rejection by this target."""

    @property
    def can_move(self) -> bool:
        """Whether the request can be sent to another target, as far as the request is concerned."""
        return self.is_kept and not self.needs_object

    @property
    def may_run_again(self) -> bool:
        """Whether the request may be sent again after an engine may have started it."""
        return may_run_again(
            is_whole=self.is_whole,
            is_kept=self.is_kept,
            is_repeatable=self.is_repeatable,
            is_for_object=self.is_for_object,
        )


def may_run_again(*, is_whole: bool, is_kept: bool, is_repeatable: bool, is_for_object: bool) -> bool:
    """Whether a request may be sent again after an engine may have started it."""
    return is_whole and is_kept and is_repeatable and not is_for_object


def may_move_here(failed: FailedAttempt, others: OtherTargets) -> bool:
    """Whether a request that no engine has started can and may be sent to another endpoint of the region."""
    return failed.can_move and others.is_ready_here() and others.budget_allows()


def may_retry(failed: FailedAttempt, others: OtherTargets, outcome: Outcome) -> bool:
    """Whether a request can and may be sent again after an attempt ended with `outcome`."""
    has_attempts = failed.attempts < MAX_ATTEMPTS and failed.failures_left > failed.failed_engines
    return RULES[outcome].may_retry and has_attempts and failed.may_run_again and others.budget_allows()


def may_move(failed: FailedAttempt, others: OtherTargets) -> bool:
    """Whether a request, to which an engine responded with an error, is sent to another target.

    A forwarded request stays if this region has no other endpoint: only its origin knows whether another region is
    left, and forwards the engine's response otherwise (`next_step.STATES_FAILURE`).
    """
    leaves_region = failed.broken + failed.failed_engines >= MAX_BROKEN
    return (
        not failed.needs_object
        and may_retry(failed, others, Outcome.ENGINE_ERROR)
        and others.is_at_fault()
        and others.is_ready(leaves_region=leaves_region)
    )


def may_leave_suspect(failed: FailedAttempt, others: OtherTargets, stall: Stall) -> bool:
    """Whether a request may leave its suspect target. Otherwise it stays, since the target may recover."""
    return (
        stall.may_resend(repeatable=failed.is_repeatable)
        and failed.is_kept
        and failed.attempts < MAX_ATTEMPTS
        and failed.broken + failed.failed_elsewhere + 1 < MAX_BROKEN
        and others.budget_allows()
        and others.is_ready_beside_suspect()
    )
