from math import inf

from penstock.health.warm_up_weight import (
    warm_since,
    warm_up_weight,
)

STEPS = 10
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_weight_rises_from_a_tenth_to_whole_in_steps() -> None:
    weights = [warm_up_weight(s, 30.0) for s in range(31)]
    assert weights[0] == 1 / STEPS
    assert weights == sorted(weights)
    assert weights[15] == 0.5
    assert weights[30] == 1.0
    assert warm_up_weight(0.01, 30.0) == warm_up_weight(2.9, 30.0)


def test_no_ramp_without_a_time_for_it() -> None:
    assert warm_up_weight(0.0, 0.0) == 1.0


def test_a_blink_costs_no_warmth_and_an_absence_does() -> None:
    assert warm_since(10.0, 50.0, 50.5) == 10.0
    assert warm_since(10.0, 50.0, 52.9) == 10.0
    assert warm_since(10.0, 50.0, 53.0) == 53.0
    assert warm_since(inf, 0.0, 0.5) == 0.5
