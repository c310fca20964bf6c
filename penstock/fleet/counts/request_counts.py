"""Monotonic counters of request results, by which a change of policy is evaluated."""

from __future__ import annotations

import msgspec

MAX_COUNT = 2**53 - 1
"""Maximum of a counter: sums over many agents still fit, and JSON represents it exactly."""


class RequestCounts(msgspec.Struct, frozen=True):
    """Results of clients' requests since the agent began; or, as a difference, in an interval."""

    ended: int = 0
    """Finished requests whose outcome counts as evidence (`penstock.accounts.outcome_rules.RULES`): not invalid
    requests, nor those that a client, a change of policy or the stop of the agent ended. Also refusals of
    `FAULTS_OF_POLICY`."""
    failed: int = 0
    """Requests in `ended` that count as failures: an engine, the fleet or its policy answered with an error or
    refusal."""
    begun: int = 0
    """Requests in `ended` for streams whose response began."""
    first_byte_s: float = 0.0
    """Sum of the times to first byte (s) of the requests in `begun`."""
    first_byte_s2: float = 0.0
    """Sum of the squares (s²) of these times; 0 from agents of earlier releases."""

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(
            self.ended + other.ended,
            self.failed + other.failed,
            self.begun + other.begun,
            self.first_byte_s + other.first_byte_s,
            self.first_byte_s2 + other.first_byte_s2,
        )

    def since(self, mark: RequestCounts) -> RequestCounts:
        """Returns the difference from `mark`, an earlier state of the same counters."""
        return RequestCounts(
            max(0, self.ended - mark.ended),
            max(0, self.failed - mark.failed),
            max(0, self.begun - mark.begun),
            max(0.0, self.first_byte_s - mark.first_byte_s),
            max(0.0, self.first_byte_s2 - mark.first_byte_s2),
        )

    @property
    def are_valid(self) -> bool:
        """Whether the counters are consistent and within their limits."""
        counts = 0 <= self.failed <= self.ended <= MAX_COUNT and 0 <= self.begun <= self.ended
        return counts and 0.0 <= self.first_byte_s <= MAX_COUNT and 0.0 <= self.first_byte_s2 <= MAX_COUNT

    @property
    def failed_share(self) -> float:
        """The share (0-1) of finished requests that failed; 0 without finished requests."""
        return self.failed / self.ended if self.ended else 0.0

    @property
    def mean_first_byte_s(self) -> float:
        """Mean time (s) to first byte; 0 without any response."""
        return self.first_byte_s / self.begun if self.begun else 0.0
