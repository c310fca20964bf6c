"""Failed attempts, and what is known of the other targets, for the rules of retries."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.retries.failed_attempt import FailedAttempt
from penstock.retries.retry_rules import RetryReason


@dataclass
class Others:
    """The answers to what is asked of the other targets."""

    here: bool = True
    elsewhere: bool = True
    awaited: bool = True
    at_fault: bool = True
    budget: bool = True

    def is_ready_here(self) -> bool:
        return self.here

    def is_ready(self, *, leaves_region: bool) -> bool:
        return self.elsewhere or (self.here and not leaves_region)

    def is_ready_beside_suspect(self) -> bool:
        return self.elsewhere or self.here

    def is_awaited(self) -> bool:
        return self.awaited

    def is_at_fault(self) -> bool:
        return self.at_fault

    def budget_allows(self) -> bool:
        return self.budget


def failed_attempt(**known: object) -> FailedAttempt:
    """An attempt at an endpoint of this region, whose request may be sent again, with what is `known` of it."""
    usual = {
        "is_whole": True,
        "is_kept": True,
        "is_repeatable": True,
        "needs_object": False,
        "is_for_object": False,
        "is_forwarded": False,
        "attempts": 1,
        "broken": 0,
        "failed_elsewhere": 0,
        "failures_left": 3,
        "reported_error": "",
        "from_peer": False,
        "region": "eu",
        "failed_engines": 1,
        "is_charged": True,
        "accepts_in_s": 0.0,
        "rejected_as": RetryReason.ENGINE_BUSY,
    }
    return FailedAttempt(**{**usual, **known})  # type: ignore[arg-type]
