"""Room goes to the agent whose first has waited longest, and past one that does not take it."""

from __future__ import annotations

from penstock.admission.fair_queueing import PASSED_OVER_S, Head, Turns

OWN = Head(0, 5.0, 1)


def test_the_one_whose_first_has_waited_longest_takes_room() -> None:
    turns = Turns()
    older, younger, urgent = Head(0, 4.0, 2), Head(0, 6.0, 3), Head(-3, 9.0, 4)
    assert turns.whose(OWN, [], 0.0) is None
    assert turns.whose(OWN, [younger], 0.0) is None
    assert turns.whose(OWN, [younger, older], 0.0) == older
    assert turns.whose(OWN, [older, urgent], 0.0) == urgent


def test_whoever_does_not_move_in_its_turn_is_passed_over_for_a_while() -> None:
    turns = Turns()
    dead, other = Head(0, 3.0, 2), Head(0, 4.0, 3)
    turns.pass_over(dead, 10.0)
    assert turns.whose(OWN, [dead], 10.0) is None
    assert turns.whose(OWN, [dead._replace(since=3.2)], 10.1) is None, "heard anew of the same one"
    assert turns.whose(OWN, [dead, other], 10.1) == other
    turns.pass_over(other, 10.2)
    assert turns.whose(OWN, [dead, other], 10.3) is None, "two dead agents hold up nobody either"
    assert turns.whose(OWN, [dead._replace(which=9)], 10.3) is not None, "its next one has a turn of its own"
    assert turns.whose(OWN, [dead, other], 10.0 + PASSED_OVER_S) == dead
