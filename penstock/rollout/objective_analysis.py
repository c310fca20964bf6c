"""Whether a candidate misses a service objective, compared with the time before it or with the other regions.

Some answers are late by chance, and the test is repeated many times during a rollout. An objective therefore counts as
missed only if more answers were late than chance explains, and significantly more than in a baseline that met the
objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt

import msgspec

from penstock.policy.service_objective import Measure, ObjectiveReport, Wanted, within_text

DEVIATIONS_BROKEN = 3.0
"""Standard deviations by which late answers must exceed the permitted number before an objective counts as missed."""

DEVIATIONS_WORSE = 2.0
"""Standard deviations by which the late share must exceed that of the baseline, which may have met the objective by
chance."""

MIN_MISSED = 5
"""Minimum number of late answers of a missed objective: fewer are attributed to chance, since the deviation of so few
is unreliable."""


class ObjectiveCounts(msgspec.Struct, frozen=True, array_like=True):
    """Attainment of one model's objective: two counters that only grow; or, as a difference, an interval."""

    model: str
    limit_s: float
    share: float
    answers: int
    within: int
    measure: Measure = Measure.FIRST_BYTE

    @property
    def wanted(self) -> Wanted:
        """Identifies the objective."""
        return self.model, self.limit_s, self.share, self.measure

    @property
    def is_kept(self) -> bool:
        """Whether enough answers were within the limit."""
        return self.within >= self.share * self.answers

    @property
    def is_broken(self) -> bool:
        """Whether significantly more answers were late than the objective permits."""
        missed, may_miss = self.answers - self.within, (1.0 - self.share) * self.answers
        return missed >= MIN_MISSED and missed > may_miss + DEVIATIONS_BROKEN * sqrt(may_miss * self.share)

    @property
    def attained(self) -> float:
        """The share (0-1) of answers that were within the limit; 1 without answers."""
        return self.within / self.answers if self.answers else 1.0

    def is_worse_than(self, other: ObjectiveCounts) -> bool:
        """Whether a significantly larger share was late than in `other`, which has answers too."""
        both = (self.within + other.within) / (self.answers + other.answers)
        deviation = sqrt(both * (1.0 - both) * (1.0 / self.answers + 1.0 / other.answers))
        return other.attained - self.attained > DEVIATIONS_WORSE * deviation


def counts_of(reports: Iterable[ObjectiveReport]) -> tuple[ObjectiveCounts, ...]:
    """Returns the counters since an agent's start, for the objectives of the agent's policy."""
    return tuple(counted(report, report.answers_ever, report.within_ever) for report in reports)


def counted(report: ObjectiveReport, answers: int, within: int) -> ObjectiveCounts:
    """Returns counters for the objective of a report."""
    return ObjectiveCounts(report.model, report.limit_s, report.share, answers, within, report.measure)


def counts_since(mark: Iterable[ObjectiveCounts], now: Iterable[ObjectiveCounts]) -> tuple[ObjectiveCounts, ...]:
    """Returns the difference from `mark`. An objective that the mark lacks is omitted; reset counters count in full."""
    marked = {counts.wanted: counts for counts in mark}
    return tuple(
        _difference(counts, marked[counts.wanted]) if counts.answers >= marked[counts.wanted].answers else counts
        for counts in now
        if counts.wanted in marked
    )


def merge_counts(parts: Iterable[ObjectiveCounts]) -> dict[Wanted, ObjectiveCounts]:
    """Returns the sum of several agents' counters, by objective."""
    found: dict[Wanted, ObjectiveCounts] = {}
    for part in parts:
        other = found.get(part.wanted)
        if other is not None:
            answers, within = part.answers + other.answers, part.within + other.within
            part = msgspec.structs.replace(part, answers=answers, within=within)
        found[part.wanted] = part
    return found


def broken_objective(
    now: Mapping[Wanted, ObjectiveCounts],
    before: Mapping[Wanted, ObjectiveCounts],
    elsewhere: Mapping[Wanted, ObjectiveCounts],
    min_answers: int,
) -> str | None:
    """Describes the first objective that is missed now and was met before; without a baseline, is met elsewhere.

    Args:
        min_answers: counters with fewer answers are ignored.
    """
    for wanted, counts in sorted(now.items()):
        if counts.answers < min_answers or not counts.is_broken:
            continue
        for usual, baseline in ((before.get(wanted), "before"), (elsewhere.get(wanted), "elsewhere")):
            if usual is not None and usual.answers >= min_answers:
                if usual.is_kept and counts.is_worse_than(usual):
                    return _description(counts, usual, baseline)
                break
    return None


def _difference(counts: ObjectiveCounts, mark: ObjectiveCounts) -> ObjectiveCounts:
    within = min(max(0, counts.within - mark.within), counts.answers - mark.answers)
    return msgspec.structs.replace(counts, answers=counts.answers - mark.answers, within=within)


def _description(counts: ObjectiveCounts, usual: ObjectiveCounts, baseline: str) -> str:
    return (
        f"{counts.attained:.2%} of answers of {counts.model} {within_text(counts.limit_s, counts.measure)};"
        f" the objective is {counts.share:.2%}, and {usual.attained:.2%} did {baseline}"
    )
