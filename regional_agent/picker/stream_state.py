"""The states of one request at the endpoint picker, and the transitions between them as a table."""

from __future__ import annotations

from enum import Enum
from typing import Final


class InvalidTransition(Exception):
    """Raised for a transition that TRANSITIONS does not contain: Envoy sent messages out of order, or a defect."""


class StreamState(Enum):
    """A state of a request."""

    # By identity: the hash of an enum member is a function of Python, which each look-up in TRANSITIONS would call.
    __hash__ = object.__hash__

    HEAD = "head"
    """The head has not arrived."""
    RECEIVING = "receiving"
    """The head has been accepted; the body is arriving, and no target can be selected yet."""
    LOOKUP = "lookup"
    """The location of the object that the request names is read from the region's Redis, or the key of its token is
    fetched."""
    SELECTING = "selecting"
    """The router selects a target."""
    QUEUED = "queued"
    """All targets are full; the request is in the admission queue."""
    PICKED = "picked"
    """Envoy has the target; no response has begun."""
    RESPONDING = "responding"
    """The head of the response has arrived."""
    DONE = "done"
    """Everything is released and the outcome is recorded."""


_S = StreamState

TRANSITIONS: Final[dict[StreamState, frozenset[StreamState]]] = {
    _S.HEAD: frozenset({_S.RECEIVING, _S.LOOKUP, _S.SELECTING, _S.DONE}),
    _S.RECEIVING: frozenset({_S.LOOKUP, _S.SELECTING, _S.DONE}),
    # LOOKUP again: of the object, once the key is known
    _S.LOOKUP: frozenset({_S.LOOKUP, _S.SELECTING, _S.DONE}),
    # SELECTING again: with the fallback model, or without an endpoint whose address is unknown
    _S.SELECTING: frozenset({_S.SELECTING, _S.QUEUED, _S.PICKED, _S.DONE}),
    _S.QUEUED: frozenset({_S.SELECTING, _S.DONE}),
    _S.PICKED: frozenset({_S.RESPONDING, _S.DONE}),
    _S.RESPONDING: frozenset({_S.DONE}),
    _S.DONE: frozenset(),
}
"""The allowed transitions."""


def entered(state: StreamState, following: StreamState) -> StreamState:
    """Return `following`; raises InvalidTransition if it may not follow `state`."""
    if following not in TRANSITIONS[state]:
        raise InvalidTransition(f"{state.value} -> {following.value}")
    return following
