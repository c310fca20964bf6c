"""A share turns round only when that is wanted enough, for long enough; news of servers is no whim."""

from __future__ import annotations

from penstock.planner.steadiness import SETTLED_S, TURN_SHARE_S, Steadiness
from penstock.slices import Key

KEY = Key("a", "m", "r")


def grown(steadiness: Steadiness, until_s: int = 4) -> dict[str, float]:
    """A share of b's that has gone up step by step."""
    standing = {"a": 1.0}
    for at in range(until_s):
        wanted = {"a": 0.9 - at / 10, "b": 0.1 + at / 10}
        assert steadiness.steadied(KEY, standing, wanted, float(at)) == wanted
        standing = wanted
    return standing


def held_for_s(steadiness: Steadiness, standing: dict[str, float], wanted: dict[str, float], from_s: int) -> int:
    at = from_s
    while steadiness.steadied(KEY, standing, wanted, float(at)) == standing:
        at += 1
    return at - from_s


def test_a_share_goes_on_its_way_at_once_and_turns_round_late() -> None:
    steadiness = Steadiness()
    standing = grown(steadiness)
    back = {"a": standing["a"] + 0.2, "b": standing["b"] - 0.2}
    waited = held_for_s(steadiness, standing, back, 4)
    assert TURN_SHARE_S / 0.2 - 1 <= waited <= TURN_SHARE_S / 0.2 + 1


def test_a_small_turn_waits_longer_than_a_large_one() -> None:
    waits = []
    for size in (0.1, 0.4):
        steadiness = Steadiness()
        standing = grown(steadiness)
        waits.append(held_for_s(steadiness, standing, {"a": standing["a"] + size, "b": standing["b"] - size}, 4))
    assert waits[0] > 2 * waits[1]


def test_a_turn_that_is_not_wanted_any_more_is_forgotten() -> None:
    steadiness = Steadiness()
    standing = grown(steadiness)
    back = {"a": standing["a"] + 0.2, "b": standing["b"] - 0.2}
    for at in range(4, 24):
        wanted = standing if at % 3 == 0 else back
        assert steadiness.steadied(KEY, standing, wanted, float(at)) == standing


def test_what_moves_besides_a_held_share_still_moves_and_sums_to_one() -> None:
    steadiness = Steadiness()
    standing = grown(steadiness)
    wanted = {"a": standing["a"] - 0.1, "b": standing["b"] - 0.2, "c": 0.3}
    moved = dict(steadiness.steadied(KEY, standing, wanted, 4.0))
    assert moved["b"] == standing["b"]
    assert abs(moved["c"] - 0.1) < 1e-9
    assert abs(sum(moved.values()) - 1.0) < 1e-9


def test_after_a_rest_everything_may_move_either_way() -> None:
    steadiness = Steadiness()
    standing = grown(steadiness)
    for at in range(4, 10):
        steadiness.steadied(KEY, standing, standing, at * SETTLED_S)
    assert steadiness.steadied(KEY, standing, {"a": 1.0}, 10 * SETTLED_S) == {"a": 1.0}


def test_when_servers_come_or_go_nothing_holds() -> None:
    steadiness = Steadiness()
    steadiness.begin("m", {"a", "b"})
    standing = grown(steadiness)
    steadiness.begin("m", {"a", "b"})
    assert steadiness.steadied(KEY, standing, {"a": 1.0}, 4.0) == standing
    steadiness.begin("m", {"a", "b", "c"})
    assert steadiness.steadied(KEY, standing, {"a": 1.0}, 5.0) == {"a": 1.0}


def test_a_new_key_gets_what_is_wanted() -> None:
    assert Steadiness().steadied(KEY, {}, {"a": 1.0}, 0.0) == {"a": 1.0}
