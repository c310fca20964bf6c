"""Comparisons of samples that are repeated while the samples grow."""

from __future__ import annotations

import random
from math import inf, sqrt
from statistics import mean, variance

import pytest

from penstock.rollout.significance import (
    Sample,
    is_greater,
    mean_is_above,
    share_is_above,
    share_is_greater,
    standard_errors,
)


class Growing:
    """A sample of values with a long tail: the largest of 1,000 is 13 times the median."""

    def __init__(self, rng: random.Random, factor: float) -> None:
        self._rng, self._factor = rng, factor
        self._count, self._total, self._squares = 0, 0.0, 0.0

    def grow(self) -> Sample:
        value = self._factor * self._rng.lognormvariate(0.0, 0.8)
        self._count, self._total, self._squares = self._count + 1, self._total + value, self._squares + value * value
        return Sample.of(self._count, self._total, self._squares)


def found_at(seed: int, factor: float, most: int) -> int | None:
    """The number of values at which the new sample is greater, asked after each value."""
    rng = random.Random(seed)
    old, new = Growing(rng, 1.0), Growing(rng, factor)
    for count in range(1, most + 1):
        usual, now = old.grow(), new.grow()
        if is_greater(now, usual):
            return count
    return None


def test_equal_samples_do_not_differ_however_often_they_are_compared() -> None:
    assert [found_at(seed, 1.0, 400) for seed in range(50)] == [None] * 50


@pytest.mark.parametrize("values", [1, 4])
def test_fewer_than_five_values_decide_nothing(values: int) -> None:
    few, many = Sample.of(values, 100.0 * values, 10_000.0 * values), Sample.of(100, 100.0, 100.0)
    assert not is_greater(few, many)
    assert not is_greater(few, Sample.of(values, values, values))
    assert not is_greater(Sample.of(100, 10_000.0, 1_000_000.0), Sample.of(values, values, values))
    assert not mean_is_above(few, 1.0)
    assert is_greater(Sample.of(5, 500.0, 50_000.0), many), "equal values without a spread"


def test_a_difference_is_found() -> None:
    found = [found_at(seed, 1.5, 800) or inf for seed in range(20)]
    assert sorted(found)[10] < 250
    assert max(found) < 800


@pytest.mark.parametrize(
    ("part", "other_part", "expected"), [(13, 100, False), (25, 100, True), (10, 100, False), (2, 0, False)]
)
def test_a_share_is_greater_beyond_chance(part: int, other_part: int, expected: bool) -> None:
    assert share_is_greater(part, 100, other_part, 1000) is expected


def test_a_share_is_above_a_known_one_beyond_chance() -> None:
    assert [share_is_above(part, 100, 0.02) for part in (3, 7, 8, 50)] == [False, False, True, True]
    assert [share_is_above(part, 1000, 0.0) for part in (4, 5)] == [False, True]
    assert not share_is_above(0, 0, 0.5)


def test_samples_without_values_do_not_differ() -> None:
    assert not share_is_greater(0, 0, 1, 2)
    assert not share_is_greater(1, 1, 0, 0)
    assert not is_greater(Sample.of(0, 0.0, 0.0), Sample.of(3, 1.0, 1.0))
    assert standard_errors(0, 5) == inf


def test_the_bound_falls_towards_a_hundred_values_and_then_grows_slowly() -> None:
    bounds = [round(standard_errors(count, inf), 1) for count in (20, 100, 1000, 100_000)]
    assert bounds == [4.9, 3.7, 3.6, 4.2]


def test_a_small_sample_that_lacks_the_tail_of_a_large_one_does_not_differ() -> None:
    assert not is_greater(Sample(2000, 1.0, 3.0), Sample(20, 0.5, 0.1))
    assert is_greater(Sample(2000, 1.0, 3.0), Sample(400, 0.5, 0.1))


def test_without_squares_any_difference_counts() -> None:
    assert is_greater(Sample.of(10, 11.0, 0.0), Sample.of(10, 10.0, 0.0))


@pytest.mark.parametrize("values", [(-1.0, 0.0, 1.0), (-1.0, 1.0), (0.0,) * 9 + (1.0,), (0.0, 0.2, 0.4)])
def test_a_mean_at_its_limit_is_seldom_above_it_however_often_it_is_compared(values: tuple[float, ...]) -> None:
    """At most 1 % of the samples are ever found to be above their own mean."""
    limit, found = sum(values) / len(values), 0
    for seed in range(200):
        rng, total, squares = random.Random(seed), 0.0, 0.0
        for count in range(1, 401):
            value = rng.choice(values)
            total, squares = total + value, squares + value * value
            if count >= 50 and mean_is_above(Sample.of(count, total, squares), limit):
                found += 1
                break
    assert found <= 2


def test_a_mean_above_its_limit_is_found() -> None:
    rng = random.Random(1)
    drawn = [rng.choice((-1.0, 0.0, 1.0, 1.0)) for _ in range(400)]
    assert mean_is_above(Sample.of(400, sum(drawn), sum(value * value for value in drawn)), 0.0)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0, 10.0], [5.0] * 6, [0.0] * 4 + [9.0] * 3])
def test_moments_are_those_of_the_values(values: list[float]) -> None:
    found = Sample.of(len(values), sum(values), sum(value * value for value in values))
    assert (found.count, found.mean) == (len(values), pytest.approx(mean(values)))
    assert found.variance == pytest.approx(variance(values))


def test_the_larger_of_both_spreads_decides() -> None:
    """The error of the mean is that of both samples apart, or of both together if that is larger."""
    bound = standard_errors(100, 400)
    wide, narrow = Sample(100, 0.0, 9.0), Sample(400, 0.0, 1.0)
    apart = sqrt(9.0 / 100 + 1.0 / 400)
    other_wide, other_narrow = Sample(100, 0.0, 1.0), Sample(400, 0.0, 9.0)
    together = sqrt((100 * 1.0 + 400 * 9.0) / 500 * (1 / 100 + 1 / 400))
    for one, other, error in ((wide, narrow, apart), (other_wide, other_narrow, together)):
        for factor, greater in ((0.99, False), (1.01, True)):
            above = Sample(one.count, factor * error * bound, one.variance)
            assert is_greater(above, other) is greater
