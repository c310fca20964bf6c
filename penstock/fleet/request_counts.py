"""How an agent's answers to its clients went, in numbers that only grow: what a change of policy is judged by."""

from __future__ import annotations

import msgspec

LARGEST = 2**53 - 1
"""No agent counts further than this: the sums of many can still be written, and JSON carries it exactly everywhere."""


class Answers(msgspec.Struct, frozen=True):
    """Requests of clients that ended here, since the agent began; or, as a difference, in some span of time."""

    ended: int = 0
    """All of them but those that the client left or got wrong."""
    failed: int = 0
    """Those of them that an engine, this fleet or its policy answered with a refusal or an error."""
    begun: int = 0
    """Those whose answer began."""
    first_byte_s: float = 0.0
    """The time (s) that the first byte of those took, all together."""

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            self.ended + other.ended,
            self.failed + other.failed,
            self.begun + other.begun,
            self.first_byte_s + other.first_byte_s,
        )

    def since(self, mark: Answers) -> Answers:
        """What came after `mark`, an earlier state of the same counters."""
        return Answers(
            max(0, self.ended - mark.ended),
            max(0, self.failed - mark.failed),
            max(0, self.begun - mark.begun),
            max(0.0, self.first_byte_s - mark.first_byte_s),
        )

    @property
    def are_possible(self) -> bool:
        """Whether counters can ever look like this."""
        whole = 0 <= self.failed <= self.ended <= LARGEST and 0 <= self.begun <= self.ended
        return whole and 0.0 <= self.first_byte_s <= LARGEST

    @property
    def failed_share(self) -> float:
        """The part (0-1) that failed; 0 of none."""
        return self.failed / self.ended if self.ended else 0.0

    @property
    def mean_first_byte_s(self) -> float:
        """Mean time (s) to the first byte; 0 of none."""
        return self.first_byte_s / self.begun if self.begun else 0.0
