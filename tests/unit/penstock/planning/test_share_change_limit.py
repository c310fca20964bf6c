"""Shares move by a bounded step, ignore noise, and move at once only in an emergency."""

from __future__ import annotations

import pytest

from penstock.planning.share_change_limit import moved_share, normalised, ramped, step_towards

DEADBAND = 0.02
"""As documented, and not imported: a test fails if a tuned constant changes."""

ALIVE = {"a", "b", "c"}
NOISE = {"a": 0.7 + DEADBAND / 2, "b": 0.3 - DEADBAND / 2}
MORE_THAN_NOISE = {"a": 0.7 + DEADBAND * 1.1, "b": 0.3 - DEADBAND * 1.1}


def test_moved_share_is_the_part_of_the_traffic_that_changes_server() -> None:
    assert moved_share({"a": 1.0}, {"a": 0.6, "b": 0.4}) == pytest.approx(0.4)
    assert moved_share({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == 0.0


@pytest.mark.parametrize(
    ("in_force", "wanted", "step", "alive", "expected"),
    [
        pytest.param({"a": 1.0}, {"a": 0.2, "b": 0.8}, 0.1, ALIVE, {"a": 0.9, "b": 0.1}, id="a long way, in steps"),
        pytest.param({"a": 1.0}, {"a": 0.9, "b": 0.1}, 0.2, ALIVE, {"a": 0.9, "b": 0.1}, id="a short way, whole"),
        pytest.param({"a": 0.7, "b": 0.3}, NOISE, 1.0, ALIVE, {"a": 0.7, "b": 0.3}, id="noise moves nothing"),
        pytest.param(
            {"a": 0.7, "b": 0.3}, MORE_THAN_NOISE, 1.0, ALIVE, MORE_THAN_NOISE, id="a small move beyond the noise"
        ),
        pytest.param(
            {"a": 0.99, "b": 0.01}, {"a": 1.0}, 0.1, ALIVE, {"a": 1.0}, id="the last of a share, though small"
        ),
        pytest.param({}, {"b": 1.0}, 0.01, ALIVE, {"b": 1.0}, id="the first plan, whole"),
        pytest.param(
            {"a": 0.5, "b": 0.5},
            {"b": 0.9, "c": 0.1},
            0.01,
            {"b", "c"},
            {"b": 0.9, "c": 0.1},
            id="a dead server, at once",
        ),
        pytest.param(
            {"a": 1.0, "b": 0.0}, {"c": 1.0}, 0.1, {"a", "c"}, {"a": 0.9, "c": 0.1}, id="a dead server without a share"
        ),
    ],
)
def test_shares_move_by_the_step_unless_the_way_is_short_or_a_server_is_dead(
    in_force: dict[str, float], wanted: dict[str, float], step: float, alive: set[str], expected: dict[str, float]
) -> None:
    assert step_towards(in_force, wanted, step, alive) == pytest.approx(expected, rel=1e-9)


def test_crumbs_go_and_the_rest_sums_to_one() -> None:
    assert normalised({"a": 3.0, "b": 1.0, "c": 1e-9}) == pytest.approx({"a": 0.75, "b": 0.25})


def test_a_returning_server_has_no_more_than_its_ramp_grants() -> None:
    assert ramped({"a": 0.8, "b": 0.2}, {"a": 0.3}, []) == pytest.approx({"a": 0.3, "b": 0.7})
    assert ramped({"a": 0.8, "b": 0.2}, {"a": 0.9}, []) == {"a": 0.8, "b": 0.2}


def test_what_a_ramp_holds_back_goes_to_an_heir_that_is_whole() -> None:
    assert ramped({"a": 1.0}, {"a": 0.25, "b": 0.5}, ["a", "b", "c"]) == pytest.approx({"a": 0.25, "c": 0.75})


def test_a_returning_server_without_alternatives_keeps_everything() -> None:
    assert ramped({"a": 1.0}, {"a": 0.0, "b": 0.1}, ["a", "b"]) == {"a": 1.0}
