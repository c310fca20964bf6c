"""Shares move by a bounded step, stand still for noise, and jump only in an emergency."""

from __future__ import annotations

import pytest

from penstock.planning.change_limit import DEADBAND, moved_share, normalised, ramped, step_towards

ALIVE = {"a", "b", "c"}


def test_moved_share_is_the_part_of_the_traffic_that_changes_server() -> None:
    assert moved_share({"a": 1.0}, {"a": 0.6, "b": 0.4}) == pytest.approx(0.4)
    assert moved_share({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == 0.0


def test_a_long_way_is_taken_in_steps() -> None:
    stepped = step_towards({"a": 1.0}, {"a": 0.2, "b": 0.8}, 0.1, ALIVE)
    assert stepped == pytest.approx({"a": 0.9, "b": 0.1})


def test_a_short_way_is_taken_whole() -> None:
    assert step_towards({"a": 1.0}, {"a": 0.9, "b": 0.1}, 0.2, ALIVE) == {"a": 0.9, "b": 0.1}


def test_noise_moves_nothing() -> None:
    before = {"a": 0.7, "b": 0.3}
    assert step_towards(before, {"a": 0.7 + DEADBAND / 2, "b": 0.3 - DEADBAND / 2}, 1.0, ALIVE) == before


def test_the_last_of_a_share_goes_though_it_is_small() -> None:
    assert step_towards({"a": 0.99, "b": 0.01}, {"a": 1.0}, 0.1, ALIVE) == {"a": 1.0}


def test_the_first_plan_is_taken_whole() -> None:
    assert step_towards({}, {"b": 1.0}, 0.01, ALIVE) == {"b": 1.0}


def test_a_dead_server_is_left_at_once() -> None:
    assert step_towards({"a": 0.5, "b": 0.5}, {"b": 0.9, "c": 0.1}, 0.01, {"b", "c"}) == {"b": 0.9, "c": 0.1}


def test_a_dead_server_without_a_share_is_no_emergency() -> None:
    assert step_towards({"a": 1.0, "b": 0.0}, {"c": 1.0}, 0.1, {"a", "c"}) == pytest.approx({"a": 0.9, "c": 0.1})


def test_crumbs_go_and_the_rest_sums_to_one() -> None:
    assert normalised({"a": 3.0, "b": 1.0, "c": 1e-9}) == pytest.approx({"a": 0.75, "b": 0.25})


def test_a_returning_server_has_no_more_than_its_ramp_grants() -> None:
    assert ramped({"a": 0.8, "b": 0.2}, {"a": 0.3}, []) == pytest.approx({"a": 0.3, "b": 0.7})
    assert ramped({"a": 0.8, "b": 0.2}, {"a": 0.9}, []) == {"a": 0.8, "b": 0.2}


def test_what_a_ramp_holds_back_goes_to_an_heir_that_is_whole() -> None:
    assert ramped({"a": 1.0}, {"a": 0.25, "b": 0.5}, ["a", "b", "c"]) == pytest.approx({"a": 0.25, "c": 0.75})


def test_a_returning_server_without_alternatives_keeps_everything() -> None:
    assert ramped({"a": 1.0}, {"a": 0.0, "b": 0.1}, ["a", "b"]) == {"a": 1.0}
