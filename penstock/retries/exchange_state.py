"""The states of an exchange, one proxied request, and the transitions between them as a table."""

from __future__ import annotations

from typing import Final


class State:
    """A state of an exchange."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.successors: frozenset[State] = frozenset()
        """Set from TRANSITIONS."""

    def __repr__(self) -> str:
        return self.name


SELECTING: Final = State("selecting")
"""The router selects a target."""
QUEUED: Final = State("queued")
"""All targets are full; the request is in the admission queue."""
CONNECTING: Final = State("connecting")
"""A connection to the target is being opened."""
AWAITING: Final = State("awaiting")
"""The request was sent; no byte of a response body has arrived."""
REJECTED: Final = State("rejected")
"""The target rejected the request without starting it; the rest of its response is read and dropped."""
STREAMING: Final = State("streaming")
"""The client has received a part of the response: the request cannot be retried, only continued."""
TUNNEL: Final = State("tunnel")
"""The protocol was upgraded; bytes are forwarded both ways."""
DONE: Final = State("done")
"""Everything is released and the outcome is recorded."""

BEGUN: Final = (STREAMING, TUNNEL)
"""The states in which the client receives a response."""

TRANSITIONS: Final[dict[State, tuple[State, ...]]] = {
    SELECTING: (SELECTING, QUEUED, CONNECTING, AWAITING, DONE),  # SELECTING again: with the fallback model
    QUEUED: (SELECTING, DONE),
    CONNECTING: (AWAITING, SELECTING, DONE),
    # CONNECTING: the connection was stale
    AWAITING: (REJECTED, STREAMING, TUNNEL, CONNECTING, SELECTING, DONE),
    REJECTED: (SELECTING, AWAITING, STREAMING, DONE),  # STREAMING: the response is for the client after all
    STREAMING: (SELECTING, DONE),  # SELECTING: another target continues the answer
    TUNNEL: (DONE,),
    DONE: (),
}
"""The allowed transitions."""

for _state, _successors in TRANSITIONS.items():
    _state.successors = frozenset(_successors)


class InvalidTransition(Exception):
    """Raised for a transition that TRANSITIONS does not contain, which is a defect."""


class ExchangeState:
    """The state of one exchange, which the exchange and the receiver of its responses share."""

    def __init__(self) -> None:
        self.now: State = SELECTING

    def enter(self, state: State) -> None:
        """Change the state; raises InvalidTransition for a transition that the table lacks."""
        if state not in self.now.successors:
            raise InvalidTransition(f"{self.now} -> {state}")
        self.now = state
