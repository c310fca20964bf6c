"""A share reverses only if the planner requests enough of it for long enough; shares at home remain."""

from __future__ import annotations

from penstock.planning.hysteresis import (
    MAX_REVERSAL_DELAY_S,
    REVERSAL_AWAY,
    REVERSAL_HOME,
    SETTLED_S,
    SHRINKING,
    Hysteresis,
)
from penstock.planning.share_moves import Key

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
    assert returns <= REVERSAL_HOME / 0.3 + 1.0 < leaves


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
