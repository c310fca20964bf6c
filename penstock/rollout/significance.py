"""Whether two samples differ by more than chance explains, however often the question is asked.

Results are compared at every report, hundreds of times in a phase, so a fixed number of standard errors would be
exceeded by chance sooner or later. The bound of a normal mixture holds at all times together: it is about 5 standard
errors at 20 values, 3.7 at 100, and later grows as the root of a logarithm.

Source: H. Robbins, "Statistical methods related to the law of the iterated logarithm", 1970; S. Howard et al.,
"Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021, section 3.2.
"""

from __future__ import annotations

from math import inf, log, sqrt

import msgspec

MAX_ERROR = 0.01
"""Probability that two equal samples differ at any time, for samples that are nearly normal."""

TIGHTEST_AT = 30.0
"""Number of values near which the bound is tightest, relative to one that is right for a single comparison."""

MIN_VALUES = 5
"""Minimum number of values by which a mean or a share is greater: the deviation of fewer is unreliable."""


class Sample(msgspec.Struct, frozen=True):
    """The moments of a sample."""

    count: float
    mean: float
    variance: float

    @classmethod
    def of(cls, count: int, total: float, squares: float) -> Sample:
        """Returns the moments of values by their sum and the sum of their squares.

        The variance of fewer than MIN_VALUES values is unknown: infinite, so that no difference counts. An agent of an
        earlier release reports no squares. Its variance is 0, so that any difference counts.
        """
        if count == 0:
            return cls(0, 0.0, 0.0)
        mean = total / count
        if count < MIN_VALUES:
            return cls(count, mean, inf)
        return cls(count, mean, max(0.0, squares / count - mean * mean) * count / (count - 1))

    @classmethod
    def of_share(cls, part: int, count: int) -> Sample:
        """Returns the moments of values that are 1 for `part` of `count` and 0 for the others."""
        return cls.of(count, part, part)


def is_greater(one: Sample, other: Sample, pooled_variance: float | None = None) -> bool:
    """Returns whether the mean of `one` is greater than that of `other` by more than chance explains.

    Args:
        pooled_variance: of both samples if they are equal; None: computed from theirs.
    """
    if not one.count or not other.count:
        return False
    own_variance = 0.0
    if pooled_variance is None:
        own_variance = one.variance / one.count + other.variance / other.count
        # The smaller sample of values with a long tail often lacks the tail: its mean and variance are both too low.
        total = one.count + other.count
        pooled_variance = (one.variance * one.count + other.variance * other.count) / total
    error = sqrt(max(own_variance, pooled_variance * (1.0 / one.count + 1.0 / other.count)))
    return one.mean - other.mean > error * standard_errors(one.count, other.count)


def share_is_greater(part: int, count: int, other_part: int, other_count: int) -> bool:
    """Returns whether a share of one sample is greater than that of another by more than chance explains."""
    if part < MIN_VALUES:
        return False
    total = count + other_count
    share = (part + other_part) / total if total else 0.0
    one, other = Sample.of_share(part, count), Sample.of_share(other_part, other_count)
    return is_greater(one, other, share * (1.0 - share))


def share_is_above(part: int, count: int, share: float) -> bool:
    """Returns whether a share of a sample is greater than a known share by more than chance explains."""
    known = Sample(inf, share, 0.0)
    return part >= MIN_VALUES and is_greater(Sample.of_share(part, count), known, share * (1.0 - share))


def mean_is_above(sample: Sample, mean: float) -> bool:
    """Returns whether the mean of a sample is greater than a known mean by more than chance explains."""
    return is_greater(sample, Sample(inf, mean, 0.0), sample.variance)


def standard_errors(count: float, other_count: float) -> float:
    """Returns the number of standard errors that equal samples of these sizes never differ by, with the probability of
    1 - MAX_ERROR; infinite without values."""
    if not count or not other_count:
        return inf
    both = 1.0 / (1.0 / count + 1.0 / other_count)
    return sqrt((1.0 + TIGHTEST_AT / both) * (log(1.0 + both / TIGHTEST_AT) - 2.0 * log(MAX_ERROR)))
