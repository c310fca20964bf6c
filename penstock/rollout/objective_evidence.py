"""Does a candidate break a service objective? By what agents counted since, against what they did before or others do.

Chance alone makes some answers late, and is asked many times while a rollout goes on. So an objective counts as broken
only where more answers missed it than chance explains, and more than did where it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt

import msgspec

from penstock.policy.service_objective import ObjectiveReport

DEVIATIONS_BROKEN = 3.0
"""How many standard deviations more answers than may must have missed an objective before it counts as broken."""

DEVIATIONS_WORSE = 2.0
"""How many the share that missed must be above that of whoever kept it: who keeps it just so may have been lucky."""

MIN_MISSED = 5
"""Fewer answers than this that missed are chance, whatever a deviation of so few says."""

Wanted = tuple[str, float, float]
"""A model, the time (s) within which its answers should begin, and the share (0-1) that should."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """How one model's objective was kept, in two numbers that only grow; or, as a difference, in some span of time."""

    model: str
    first_byte_s: float
    share: float
    answers: int
    within: int

    @property
    def wanted(self) -> Wanted:
        """What tells objectives apart."""
        return self.model, self.first_byte_s, self.share

    @property
    def is_kept(self) -> bool:
        """Whether enough answers began in time."""
        return self.within >= self.share * self.answers

    @property
    def is_broken(self) -> bool:
        """Whether more missed than may, by more than chance."""
        missed, may_miss = self.answers - self.within, (1.0 - self.share) * self.answers
        return missed >= MIN_MISSED and missed > may_miss + DEVIATIONS_BROKEN * sqrt(may_miss * self.share)

    @property
    def attained(self) -> float:
        """The part (0-1) that began in time; all of none."""
        return self.within / self.answers if self.answers else 1.0

    def is_worse_than(self, other: Kept) -> bool:
        """Whether a larger part missed than of the other, which has answers too, by more than chance."""
        both = (self.within + other.within) / (self.answers + other.answers)
        deviation = sqrt(both * (1.0 - both) * (1.0 / self.answers + 1.0 / other.answers))
        return other.attained - self.attained > DEVIATIONS_WORSE * deviation


def counted(reports: Iterable[ObjectiveReport]) -> tuple[Kept, ...]:
    """What an agent counted since it began, of the objectives that it knows."""
    return tuple(Kept(*one.wanted, one.answers_ever, one.within_ever) for one in reports)


def since(mark: Iterable[Kept], now: Iterable[Kept]) -> tuple[Kept, ...]:
    """What came after `mark`; an objective that it does not have says nothing, one that was counted anew says all."""
    marked = {one.wanted: one for one in mark}
    return tuple(
        _less(one, marked[one.wanted]) if one.answers >= marked[one.wanted].answers else one
        for one in now
        if one.wanted in marked
    )


def together(every: Iterable[Kept]) -> dict[Wanted, Kept]:
    """What several counted of the same objectives."""
    found: dict[Wanted, Kept] = {}
    for one in every:
        other = found.get(one.wanted)
        if other is not None:
            one = msgspec.structs.replace(one, answers=one.answers + other.answers, within=one.within + other.within)
        found[one.wanted] = one
    return found


def broken(
    now: Mapping[Wanted, Kept], before: Mapping[Wanted, Kept], elsewhere: Mapping[Wanted, Kept], least: int
) -> str | None:
    """What to say of the first objective that is broken and was not before; where that is not known, is not elsewhere.

    Args:
        least: of fewer answers nothing is said.
    """
    for wanted, one in sorted(now.items()):
        if one.answers < least or not one.is_broken:
            continue
        for usual, when in ((before.get(wanted), "before"), (elsewhere.get(wanted), "elsewhere")):
            if usual is not None and usual.answers >= least:
                if usual.is_kept and one.is_worse_than(usual):
                    return _told(one, usual, when)
                break
    return None


def _less(one: Kept, mark: Kept) -> Kept:
    within = min(max(0, one.within - mark.within), one.answers - mark.answers)
    return msgspec.structs.replace(one, answers=one.answers - mark.answers, within=within)


def _told(one: Kept, usual: Kept, when: str) -> str:
    return (
        f"{one.attained:.2%} of answers of {one.model} begin within {one.first_byte_s:g} s, {one.share:.2%} should,"
        f" and {usual.attained:.2%} did {when}"
    )
