"""Results of the requests that the rollout of a model gives to its versions, by which the new version is judged."""

from __future__ import annotations

import msgspec

from penstock.fleet.counts.request_counts import MAX_COUNT, RequestCounts

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
    scored: int = 0
    """Pairs of answers that the quality hook scored; of the new version."""
    score: float = 0.0
    """Sum of their scores, from -1 (the old version is better) to 1."""
    score2: float = 0.0
    """Sum of the squares of the scores."""
    unscored: int = 0
    """Pairs that the hook did not score."""

    def __add__(self, other: VersionCounts) -> VersionCounts:
        return VersionCounts(
            self.requests + other.requests,
            self.timed + other.timed,
            self.token_s + other.token_s,
            self.answers + other.answers,
            self.answer_tokens + other.answer_tokens,
            self.token_s2 + other.token_s2,
            self.answer_tokens2 + other.answer_tokens2,
            self.scored + other.scored,
            self.score + other.score,
            self.score2 + other.score2,
            self.unscored + other.unscored,
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
            max(0, self.scored - mark.scored),
            self.score - mark.score,
            max(0.0, self.score2 - mark.score2),
            max(0, self.unscored - mark.unscored),
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
    def mean_score(self) -> float:
        """Mean score (-1 to 1) of the pairs; 0 without one."""
        return self.score / self.scored if self.scored else 0.0

    @property
    def are_valid(self) -> bool:
        """Whether the counters are within their limits."""
        counts = (self.timed, self.answers, self.answer_tokens, self.token_s, self.token_s2)
        squares = 0.0 <= self.answer_tokens2 <= float(MAX_COUNT) ** 2
        scores = 0 <= self.scored <= MAX_COUNT and 0 <= self.unscored <= MAX_COUNT
        scores = scores and abs(self.score) <= self.scored and 0.0 <= self.score2 <= self.scored
        return scores and squares and self.requests.are_valid and all(0 <= count <= MAX_COUNT for count in counts)


class VersionReport(msgspec.Struct, frozen=True, array_like=True):
    """The results of one version of a requested name at one agent."""

    name: str
    model: str
    counts: VersionCounts
