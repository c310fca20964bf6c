"""Results of the requests that the rollout of a model gives to its versions, by which the new version is judged."""

from __future__ import annotations

from math import isfinite

import msgspec

from penstock.fleet.request_counts import MAX_COUNT, RequestCounts

MAX_REPORTED = 200
"""Maximum number of versions in one report: two for each rollout that a policy may have."""


class VersionCounts(msgspec.Struct, frozen=True, array_like=True):
    """Results since the agent began; or, as a difference, in an interval. Encoded as an array: append new fields."""

    requests: RequestCounts = RequestCounts()
    timed: int = 0
    """Streams whose time per output token was measured."""
    token_s: float = 0.0
    """Sum of their mean times (s) per output token."""
    answers: int = 0
    """Successful answers whose length the engine reported."""
    answer_tokens: int = 0
    """Sum of their lengths (tokens)."""
    token_s2: float = 0.0
    """Sum of the squares (s²) of the mean times per output token; 0 from agents of earlier releases, as the next."""
    answer_tokens2: float = 0.0
    """Sum of the squares (tokens²) of the lengths."""

    def __add__(self, other: VersionCounts) -> VersionCounts:
        return VersionCounts(
            self.requests + other.requests,
            self.timed + other.timed,
            self.token_s + other.token_s,
            self.answers + other.answers,
            self.answer_tokens + other.answer_tokens,
            self.token_s2 + other.token_s2,
            self.answer_tokens2 + other.answer_tokens2,
        )

    def since(self, mark: VersionCounts) -> VersionCounts:
        """Returns the difference from `mark`, an earlier state of the same counters."""
        return VersionCounts(
            self.requests.since(mark.requests),
            max(0, self.timed - mark.timed),
            max(0.0, self.token_s - mark.token_s),
            max(0, self.answers - mark.answers),
            max(0, self.answer_tokens - mark.answer_tokens),
            max(0.0, self.token_s2 - mark.token_s2),
            max(0.0, self.answer_tokens2 - mark.answer_tokens2),
        )

    @property
    def mean_token_s(self) -> float:
        """Mean time (s) per output token; 0 without a measured stream."""
        return self.token_s / self.timed if self.timed else 0.0

    @property
    def mean_length(self) -> float:
        """Mean length (tokens) of an answer; 0 without one."""
        return self.answer_tokens / self.answers if self.answers else 0.0

    @property
    def are_valid(self) -> bool:
        """Whether the counters are within their limits."""
        counts = (self.timed, self.answers, self.answer_tokens, self.token_s, self.token_s2)
        squares = 0.0 <= self.answer_tokens2 <= float(MAX_COUNT) ** 2
        return (
            squares and self.requests.are_valid and all(isfinite(count) and 0 <= count <= MAX_COUNT for count in counts)
        )


class VersionReport(msgspec.Struct, frozen=True, array_like=True):
    """The results of one version of a requested name at one agent."""

    name: str
    model: str
    counts: VersionCounts
