"""The states of a client connection, as a table."""

from __future__ import annotations

from typing import cast

import pytest

from regional_agent.http.protocol.connection_state import (
    END,
    ENDED,
    EVENTS,
    LAST,
    PART,
    REFUSAL,
    REQUESTS,
    TRANSITIONS,
    TUNNEL,
    UPGRADE,
    UPGRADING,
    UPLOAD,
    InvalidEvent,
    State,
)
from regional_agent.http.protocol.request_parser import RequestParser
from regional_agent.http.protocol.request_sequencer import RequestSequencer


@pytest.mark.parametrize("state", list(TRANSITIONS), ids=str)
def test_an_event_is_in_the_table_or_an_error(state: State) -> None:
    for event in EVENTS:
        sequencer = RequestSequencer(cast(RequestParser, None), 1)
        sequencer.state = state
        if event in TRANSITIONS[state]:
            sequencer._enter(event)
            assert sequencer.state is TRANSITIONS[state][event]
        else:
            with pytest.raises(InvalidEvent, match=f"{event} in state {state}"):
                sequencer._enter(event)


def test_every_state_and_every_event_occurs() -> None:
    found, ahead = {REQUESTS}, [REQUESTS]
    while ahead:
        ahead += (new := set(TRANSITIONS[ahead.pop()].values()) - found)
        found |= new
    assert found == set(TRANSITIONS)
    assert {event for successors in TRANSITIONS.values() for event in successors} == set(EVENTS)


def test_a_connection_can_end_in_every_state_and_for_good() -> None:
    assert all(successors[END] is ENDED for successors in TRANSITIONS.values())
    assert set(TRANSITIONS[ENDED]) == {END}


def test_no_request_is_received_after_the_last_one() -> None:
    for state in (LAST, ENDED, TUNNEL):
        assert set(TRANSITIONS[state]) <= {REFUSAL, END}


def test_only_a_request_that_offers_it_becomes_a_tunnel() -> None:
    assert [state for state in TRANSITIONS if UPGRADE in TRANSITIONS[state]] == [UPGRADING]


def test_only_an_announced_body_arrives_in_parts() -> None:
    assert [state for state in TRANSITIONS if PART in TRANSITIONS[state]] == [UPLOAD]
