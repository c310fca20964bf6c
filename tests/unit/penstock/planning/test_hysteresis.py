"""A share reverses only if the planner requests enough of it for long enough; shares at home remain."""

from __future__ import annotations

import pytest

from penstock.planning.hysteresis import MAX_REVERSAL_DELAY_S, Hysteresis
from penstock.planning.share_moves import Key

MIN_MOVE, REVERSAL_AWAY, REVERSAL_HOME, SETTLED_S, SHRINKING = 0.005, 2.0, 0.3, 30.0, 0.8
"""As documented, and not imported: a test fails if a tuned constant changes."""

KEY = Key("a", "m", "r")
Shares = dict[str, float]


def resting() -> Hysteresis:
    """A hysteresis that has observed all shares at home for long."""
    hysteresis, home = Hysteresis(), {"a": 1.0}
    for at in (-100.0, -50.0, -0.5):
        assert hysteresis.damped(KEY, "a", home, {"a": 1.0, "b": 0.0, "c": 0.0}, at) == {"a": 1.0, "b": 0.0, "c": 0.0}
    return hysteresis


def waited_s(hysteresis: Hysteresis, standing: Shares, wanted: Shares, from_s: float) -> float:
    """The time (s) for which a change is delayed."""
    at = from_s
    while hysteresis.damped(KEY, "a", standing, wanted, at) == standing:
        at += 0.5
    return at - from_s


def away(hysteresis: Hysteresis) -> Shares:
    """Return the shares after a share has moved to b, and some time has passed."""
    standing = {"a": 1.0}
    wanted = {"a": 0.6, "b": 0.4}
    waited_s(hysteresis, standing, wanted, 0.0)
    assert hysteresis.damped(KEY, "a", {"a": 0.8, "b": 0.2}, wanted, 20.0) == wanted, "once it moves, it goes on"
    return wanted


def test_demand_leaves_home_late_and_comes_back_soon() -> None:
    hysteresis = resting()
    leaves = waited_s(hysteresis, {"a": 1.0}, {"a": 0.6, "b": 0.4}, 0.0)
    assert REVERSAL_AWAY / 0.4 - 1.0 <= leaves <= REVERSAL_AWAY / 0.4 + 1.0
    standing = away(hysteresis)
    returns = waited_s(hysteresis, standing, {"a": 0.9, "b": 0.1}, 21.0)
    assert returns == pytest.approx(REVERSAL_HOME / 0.3)
    assert returns < leaves


def test_a_small_turn_waits_longer_than_a_large_one() -> None:
    waits = [waited_s(resting(), {"a": 1.0}, {"a": 1.0 - size, "b": size}, 0.0) for size in (0.1, 0.4)]
    assert waits[0] > 2 * waits[1]


def test_a_turn_wanted_without_a_break_is_made_however_small_it_is() -> None:
    assert waited_s(resting(), {"a": 1.0}, {"a": 0.97, "b": 0.03}, 0.0) == MAX_REVERSAL_DELAY_S


def test_a_turn_that_is_not_wanted_any_more_is_forgotten() -> None:
    hysteresis, home = resting(), {"a": 1.0}
    for at in range(40):
        wanted = home if at % 4 == 0 else {"a": 0.7, "b": 0.3}
        assert hysteresis.damped(KEY, "a", home, wanted, at / 2) == home


def moves(wishes: list[float]) -> bool:
    """Whether a share at home moves if the planner assigns that much of it elsewhere in every tick."""
    hysteresis, home = resting(), {"a": 1.0}
    return any(
        hysteresis.damped(KEY, "a", home, {"a": 1.0 - wish, "b": wish}, at / 2) != home
        for at, wish in enumerate(wishes)
    )


def test_a_turn_that_is_wanted_less_and_less_is_over_before_it_is_made() -> None:
    passing = [0.6] * 4 + [0.6 * 0.88**tick for tick in range(40)]
    assert sum(passing[1:]) / 2 > REVERSAL_AWAY, "for as long, and as much, as a lasting one takes"
    assert not moves(passing)
    assert moves([0.6] * 4 + [0.6 * (0.6 + 0.4 * SHRINKING)] * 10), "what falls a little and lasts is made"
    assert moves([0.9] * 3 + [0.4] * 20), "and so is what falls far and lasts"


def test_what_moves_besides_a_held_share_still_moves_and_sums_to_one() -> None:
    hysteresis = resting()
    standing = away(hysteresis)
    # `a` gives 0.1 more, as before; the share of `b` would reverse, and `c` is new.
    moved = dict(hysteresis.damped(KEY, "a", standing, {"a": 0.5, "b": 0.3, "c": 0.2}, 21.0))
    assert moved["b"] == standing["b"]
    assert abs(sum(moved.values()) - 1.0) < 1e-9


def test_after_a_rest_a_share_leaves_home_late_again() -> None:
    hysteresis = resting()
    standing = away(hysteresis)
    for at in range(1, 4):
        hysteresis.damped(KEY, "a", standing, standing, 21.0 + at * SETTLED_S)
    later = 21.0 + 4 * SETTLED_S
    assert hysteresis.damped(KEY, "a", standing, {"a": 0.5, "b": 0.5}, later) == standing


def test_when_servers_come_or_go_nothing_holds() -> None:
    hysteresis, home = resting(), {"a": 1.0}
    wanted = {"a": 0.7, "b": 0.3}
    hysteresis.set_surroundings("m", {"a", "b"}, -200.0)
    for at in (-99.0, -50.0, 0.0):
        hysteresis.damped(KEY, "a", home, home, at)
    assert hysteresis.damped(KEY, "a", home, wanted, 0.5) == home
    hysteresis.set_surroundings("m", {"a", "b"}, 1.0)
    assert hysteresis.damped(KEY, "a", home, wanted, 1.0) == home
    hysteresis.set_surroundings("m", {"a", "b", "c"}, 1.5)
    assert hysteresis.damped(KEY, "a", home, wanted, 1.5) == wanted


def test_a_new_key_gets_what_is_wanted() -> None:
    assert Hysteresis().damped(KEY, "a", {}, {"b": 1.0}, 0.0) == {"b": 1.0}


def test_a_held_share_leaves_as_much_to_give_as_is_taken() -> None:
    hysteresis = resting()
    standing = away(hysteresis)
    # Only `b` is held: `a` gives 0.1 of the 0.3 that `d` and `e` would take, in proportion.
    moved = hysteresis.damped(KEY, "a", standing, {"a": 0.5, "b": 0.2, "d": 0.2, "e": 0.1}, 21.0)
    assert moved == {"a": 0.5, "b": 0.4, "d": pytest.approx(0.1 * 2 / 3), "e": pytest.approx(0.1 / 3)}


def test_a_held_share_leaves_as_much_to_take_as_is_given() -> None:
    hysteresis = Hysteresis()
    for at, standing in enumerate(({"a": 0.2, "b": 0.4, "c": 0.4}, {"a": 0.4, "b": 0.2, "c": 0.4})):
        hysteresis.damped(KEY, "b", standing, standing, float(at))
    # The share of `a` grew and would shrink: held. What `c` gives up goes to `b`, which takes no more than that.
    moved = hysteresis.damped(KEY, "x", {"a": 0.4, "b": 0.2, "c": 0.4}, {"a": 0.1, "b": 0.6, "c": 0.3}, 2.0)
    assert moved == {"a": 0.4, "b": 0.2, "c": 0.4}, "b shrank before, so its growth is held too"


def test_where_everything_that_moves_one_way_is_held_nothing_moves() -> None:
    hysteresis = resting()
    standing = away(hysteresis)
    assert hysteresis.damped(KEY, "a", standing, {"a": 0.6, "b": 0.1, "c": 0.3}, 21.0) == standing


def test_a_share_that_is_given_up_entirely_is_not_named() -> None:
    hysteresis = Hysteresis()
    standing = {"a": 0.5, "b": 0.3, "c": 0.2}
    for at in (1.0, 2.0):
        hysteresis.damped(KEY, "a", {"a": 0.6, "b": 0.2, "c": 0.2} if at == 1.0 else standing, standing, at)
    # `b` grew: its decrease is held. `c` gives all it has to `d`.
    moved = hysteresis.damped(KEY, "a", standing, {"a": 0.5, "b": 0.1, "d": 0.4}, 3.0)
    assert moved == {"a": 0.5, "b": 0.3, "d": pytest.approx(0.2)}


def test_the_state_of_other_keys_is_kept() -> None:
    wanted, home = {"a": 0.7, "b": 0.3}, {"a": 1.0}
    hysteresis = resting()
    hysteresis.keep({KEY: None})
    assert hysteresis.damped(KEY, "a", home, wanted, 0.0) == home
    hysteresis.keep({Key("a", "other", "r"): None})
    assert hysteresis.damped(KEY, "a", home, wanted, 0.5) == wanted, "a key that was removed has no direction"


def test_servers_of_another_model_reset_nothing() -> None:
    hysteresis, home = resting(), {"a": 1.0}
    hysteresis.set_surroundings("other", {"a"}, 0.0)
    assert hysteresis.damped(KEY, "a", home, {"a": 0.7, "b": 0.3}, 0.0) == home


@pytest.mark.parametrize(("part", "is_move"), [(0.9, False), (1.1, True)])
def test_noise_is_no_move(part: float, is_move: bool) -> None:
    hysteresis, wanted = resting(), {"a": 0.7, "b": 0.3}
    least = 1.0 - part * MIN_MOVE
    for at, share in ((0.0, least), (0.5, 1.0), (1.0, least)):
        shares = {"a": share, "b": 1.0 - share}
        hysteresis.damped(KEY, "a", shares, shares, at)
    # After moves, `a` has last moved away, and goes on.
    assert hysteresis.damped(KEY, "a", shares, wanted, 1.5) == (wanted if is_move else shares)


def test_a_share_rests_after_some_time_without_a_move() -> None:
    wanted = {"a": 0.6, "b": 0.4}
    for rested_s, delayed in ((SETTLED_S, False), (SETTLED_S + 1.0, True)):
        hysteresis = Hysteresis()
        hysteresis.damped(KEY, "a", {"a": 1.0}, {"a": 1.0}, 0.0)
        assert (hysteresis.damped(KEY, "a", {"a": 1.0}, wanted, rested_s) != wanted) == delayed


def test_a_reversal_counts_from_its_first_target() -> None:
    hysteresis, home = resting(), {"a": 1.0}
    wanted = {"a": 0.5, "b": 0.5}
    made_after_s = REVERSAL_AWAY / 0.5
    assert hysteresis.damped(KEY, "a", home, wanted, 10.0) == home
    assert hysteresis.damped(KEY, "a", home, wanted, 10.0 + made_after_s - 0.1) == home
    assert hysteresis.damped(KEY, "a", home, wanted, 10.0 + made_after_s) == wanted
