"""The states of an exchange, the transitions between them as a table, and what its attempts report."""

from __future__ import annotations

from typing import Final, Protocol

from penstock.accounts.outcome_rules import Outcome
from penstock.retries.retry_rules import RetryReason
from penstock.routing.reasons import Refusal


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


class AttemptOwner(Protocol):
    """The exchange whose attempts these are. Each call may select another target, or end the exchange."""

    def enter(self, state: State) -> None:
        """Change the state of the exchange."""

    def on_connected(self) -> None:
        """The connection is open; the request can be sent."""

    def retry(self, why: RetryReason) -> None:
        """The attempt has failed, and another one may follow."""

    def end(self, refusal: Refusal) -> None:
        """The attempt has failed, and no other one may follow."""

    def fail(self, failure: Refusal) -> None:
        """The response that the client receives has failed."""

    def complete(self, outcome: Outcome, *, keep_alive: bool) -> None:
        """The client has received the end of the response, and may send another request if `keep_alive`."""
