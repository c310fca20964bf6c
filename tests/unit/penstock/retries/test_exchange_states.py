"""The transition table of an exchange."""

from __future__ import annotations

import pytest

from penstock.retries.exchange_state import (
    DONE,
    SELECTING,
    STREAMING,
    TRANSITIONS,
    TUNNEL,
    ExchangeState,
    InvalidTransition,
    State,
)


def in_state(state: State) -> ExchangeState:
    exchange = ExchangeState()
    exchange.now = state
    return exchange


def reachable(start: State) -> set[State]:
    found, ahead = {start}, [start]
    while ahead:
        ahead += (new := set(TRANSITIONS[ahead.pop()]) - found)
        found |= new
    return found


def test_every_state_can_be_reached_and_can_end() -> None:
    assert reachable(SELECTING) == set(TRANSITIONS)
    assert all(DONE in successors for state, successors in TRANSITIONS.items() if state is not DONE)
    assert TRANSITIONS[DONE] == ()


def test_nothing_is_retried_once_the_client_has_received_a_byte() -> None:
    assert TRANSITIONS[STREAMING] == (SELECTING, DONE), "only a continuation selects another target"
    assert TRANSITIONS[TUNNEL] == (DONE,)


@pytest.mark.parametrize("state", list(TRANSITIONS))
def test_a_transition_that_the_table_lacks_is_an_error(state: State) -> None:
    for to in TRANSITIONS:
        exchange = in_state(state)
        if to in TRANSITIONS[state]:
            exchange.enter(to)
            assert exchange.now is to
        else:
            with pytest.raises(InvalidTransition, match=f"{state} -> {to}"):
                exchange.enter(to)
            assert exchange.now is state
