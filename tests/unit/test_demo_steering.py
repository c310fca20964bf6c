"""Clients are sent to the nearest entry that answers, and back to it when it answers again."""

from __future__ import annotations

from lab.demo.steering import HITS_TO_RISE, MISSES_TO_FALL, Entry, Steering

NEAR, FAR_A, FAR_B = Entry("eu-de", "a"), Entry("us-east", "a"), Entry("us-east", "b")


def steering() -> Steering:
    return Steering([NEAR, FAR_A, FAR_B])


def test_the_nearest_region_comes_first() -> None:
    assert steering().order(["eu-de", "us-east"])[0] == NEAR
    assert steering().order(["us-east", "eu-de"])[-1] == NEAR
    assert set(steering().order(["us-east"])) == {FAR_A, FAR_B}


def test_agents_of_one_region_take_turns() -> None:
    table = steering()
    first = [table.order(["us-east", "eu-de"])[0] for _ in range(30)]
    assert set(first) == {FAR_A, FAR_B}


def test_an_entry_falls_after_some_misses_in_a_row_and_goes_last() -> None:
    table = steering()
    for _ in range(MISSES_TO_FALL - 1):
        table.saw(NEAR, False)
    assert table.order(["eu-de", "us-east"])[0] == NEAR
    table.saw(NEAR, True)
    table.saw(NEAR, False)
    assert table.is_up(NEAR)
    table.saw(NEAR, False)
    assert table.order(["eu-de", "us-east"])[-1] == NEAR


def test_it_rises_after_some_good_checks_in_a_row() -> None:
    table = steering()
    for _ in range(MISSES_TO_FALL):
        table.saw(NEAR, False)
    for good in [True] * (HITS_TO_RISE - 1) + [False] + [True] * (HITS_TO_RISE - 1):
        table.saw(NEAR, good)
        assert not table.is_up(NEAR)
    table.saw(NEAR, True)
    assert table.is_up(NEAR)
