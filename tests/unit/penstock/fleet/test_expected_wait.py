from math import inf

import pytest

from penstock.fleet.expected_wait import expected_wait_s, headroom_slots, mean_with, pool_service_s

MEMORY_COMPLETIONS = 100
"""As documented, and not imported: a test fails if a tuned constant changes."""


@pytest.mark.parametrize(
    ("in_flight", "slots", "wait_s"), [(0, 4, 0.0), (3, 4, 0.0), (4, 4, 0.5), (5, 4, 1.0), (0, 0, inf), (9, 0, inf)]
)
def test_waits_for_the_slots_that_must_free_first(in_flight: int, slots: int, wait_s: float) -> None:
    assert expected_wait_s(in_flight, slots, service_s=2.0) == wait_s


def test_headroom_ends_at_the_target_and_is_never_negative() -> None:
    assert headroom_slots(3, 10, 0.8) == 5
    assert headroom_slots(9, 10, 0.8) == 0
    assert headroom_slots(0, 0, 0.8) == 0


def test_mean_service_time_leaves_its_prior_and_follows_changes() -> None:
    mean_s = 5.0
    for completions in range(10):
        mean_s = mean_with(mean_s, completions, 1.0)
    assert mean_s == pytest.approx((5.0 + 10 * 1.0) / 11)
    for completions in range(10, 10 + 5 * MEMORY_COMPLETIONS):
        mean_s = mean_with(mean_s, completions, 3.0)
    assert mean_s == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize(
    ("completions", "remembered"), [(0, 2), (97, 99), (98, MEMORY_COMPLETIONS), (9_999, MEMORY_COMPLETIONS)]
)
def test_a_mean_is_of_the_last_hundred_completions(completions: int, remembered: int) -> None:
    assert mean_with(1.0, completions, 2.0) == pytest.approx(1.0 + 1.0 / remembered)


def test_a_pool_turns_over_at_the_sum_of_its_rates() -> None:
    assert pool_service_s([(8, 2.0)], 9.0) == pytest.approx(2.0)
    assert pool_service_s([(4, 1.0), (4, 4.0)], 9.0) == pytest.approx(8 / 5)
    assert pool_service_s([], 9.0) == 9.0
