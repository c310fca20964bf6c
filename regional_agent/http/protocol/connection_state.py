"""What the bytes of a client mean on a connection, and the events that change it, as a table."""

from __future__ import annotations

from typing import Final


class Event:
    """Something that the client sends, or that the agent decides."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class State:
    """A state of a connection."""

    def __init__(self, name: str, *, receives_requests: bool = False) -> None:
        self.name = name
        self.receives_requests = receives_requests
        """Whether the client may send requests."""
        self.successors: dict[Event, State] = {}
        """The next state for each event; set from TRANSITIONS."""

    def __repr__(self) -> str:
        return self.name


REQUESTS: Final = State("requests", receives_requests=True)
"""Heads of requests arrive, and small bodies, which are collected."""
UPLOAD: Final = State("upload", receives_requests=True)
"""The large body of a request whose head was announced arrives in parts."""
UPGRADING: Final = State("upgrading")
"""A request offers an upgrade that is undecided: further bytes wait."""
TUNNEL: Final = State("tunnel")
"""The protocol was upgraded: all bytes belong to the new protocol."""
LAST: Final = State("last")
"""The last request was received or refused, and its response is due: further bytes are dropped."""
ENDED: Final = State("ended")
"""The last response was written, or the client has disconnected: further bytes are dropped."""

HEAD: Final = Event("head")
"""The head of a request whose body is large, or waits for `100 Continue`."""
PART: Final = Event("part")
"""A part of the body of such a request."""
REQUEST: Final = Event("request")
"""A complete request, after which the client may send another one."""
LAST_REQUEST: Final = Event("last request")
"""A complete request that ends the connection."""
OFFER: Final = Event("offer")
"""A complete request that offers an upgrade."""
REFUSAL: Final = Event("refusal")
"""A request is refused before it has a handler, or its body while it has one; the connection ends."""
UPGRADE: Final = Event("upgrade")
"""The offer was accepted."""
END: Final = Event("end")
"""The last response was written, or the client has disconnected."""

EVENTS: Final = (HEAD, PART, REQUEST, LAST_REQUEST, OFFER, REFUSAL, UPGRADE, END)

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    REQUESTS: {
        REQUEST: REQUESTS,
        HEAD: UPLOAD,
        LAST_REQUEST: LAST,
        OFFER: UPGRADING,
        REFUSAL: LAST,
        END: ENDED,
    },
    UPLOAD: {PART: UPLOAD, REQUEST: REQUESTS, LAST_REQUEST: LAST, REFUSAL: LAST, END: ENDED},
    UPGRADING: {UPGRADE: TUNNEL, REFUSAL: LAST, END: ENDED},  # REFUSAL: of a request that waits before the offer
    TUNNEL: {END: ENDED},
    LAST: {REFUSAL: LAST, END: ENDED},  # REFUSAL: of a request that waits before the last one
    ENDED: {END: ENDED},  # a response may end after the client has disconnected
}
"""The allowed transitions."""

for _state, _successors in TRANSITIONS.items():
    _state.successors = _successors


class InvalidEvent(Exception):
    """Raised for an event that TRANSITIONS does not contain in a state, which is a defect."""
