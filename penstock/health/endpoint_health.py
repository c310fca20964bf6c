"""Decides by health probes whether an endpoint may take requests: a state machine as a table.

A busy engine answers its health probe late long before it is dead, so slowness counts half as much as refusal: the
router must not eject its own endpoints under load.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EndpointState(StrEnum):
    """The state of one endpoint at one agent."""

    NEW = "new"
    """Not probed yet, or a request could not connect since: one good probe makes it ready."""
    READY = "ready"
    SUSPECT = "suspect"
    """Ready, but the last probe was not good."""
    DOWN = "down"


class ProbeOutcome(StrEnum):
    """The result of one health probe."""

    GOOD = "good"
    UNREADY = "unready"
    """A response other than 200."""
    UNREACHABLE = "unreachable"
    """No connection, or one that broke."""
    SLOW = "slow"
    """No answer in time."""


class EndpointEvent(StrEnum):
    """The effect of a probe or a request on the state."""

    HEARD = "heard"
    RISEN = "risen"
    """The last of enough good probes."""
    DOUBTED = "doubted"
    LOST = "lost"
    """A failed probe that reached FALL_AT."""
    BROKE = "broke"
    """A request could not connect."""


_S, _E = EndpointState, EndpointEvent

TRANSITIONS: dict[tuple[EndpointState, EndpointEvent], EndpointState] = {
    (_S.NEW, _E.RISEN): _S.READY,
    (_S.NEW, _E.DOUBTED): _S.NEW,
    (_S.NEW, _E.LOST): _S.DOWN,
    (_S.NEW, _E.BROKE): _S.NEW,
    (_S.READY, _E.HEARD): _S.READY,
    (_S.READY, _E.DOUBTED): _S.SUSPECT,
    (_S.READY, _E.BROKE): _S.NEW,
    (_S.SUSPECT, _E.HEARD): _S.READY,
    (_S.SUSPECT, _E.DOUBTED): _S.SUSPECT,
    (_S.SUSPECT, _E.LOST): _S.DOWN,
    (_S.SUSPECT, _E.BROKE): _S.NEW,
    (_S.DOWN, _E.HEARD): _S.DOWN,
    (_S.DOWN, _E.RISEN): _S.READY,
    (_S.DOWN, _E.DOUBTED): _S.DOWN,
    (_S.DOWN, _E.LOST): _S.DOWN,
    (_S.DOWN, _E.BROKE): _S.DOWN,
}

DOUBT = {ProbeOutcome.UNREADY: 2, ProbeOutcome.UNREACHABLE: 2, ProbeOutcome.SLOW: 1}
"""Weight of one such probe; a good probe resets the sum."""

FALL_AT = 4
"""Sum at which an endpoint is down: two refusals in a row, or four late responses."""

RISE_AFTER = {EndpointState.NEW: 1, EndpointState.DOWN: 2}
"""Good probes in a row that make an endpoint ready."""


class EndpointHealth(msgspec.Struct, frozen=True):
    """One endpoint's health at one agent; `probed` and `broke` return the next one."""

    state: EndpointState = EndpointState.NEW
    doubt: int = 0
    hits: int = 0
    """Consecutive good probes."""

    @property
    def ready(self) -> bool:
        """Whether it may take requests."""
        return self.state in (EndpointState.READY, EndpointState.SUSPECT)


def probed(health: EndpointHealth, outcome: ProbeOutcome) -> EndpointHealth:
    """The health after one probe.

    Raises:
        KeyError: the table has no such transition, which is a defect in this module.
    """
    if outcome is ProbeOutcome.GOOD:
        hits = health.hits + 1
        needed = RISE_AFTER.get(health.state)
        event = EndpointEvent.RISEN if needed is not None and hits >= needed else EndpointEvent.HEARD
        return EndpointHealth(TRANSITIONS[health.state, event], 0, hits)
    doubt = min(FALL_AT, health.doubt + DOUBT[outcome])
    event = EndpointEvent.LOST if doubt >= FALL_AT else EndpointEvent.DOUBTED
    return EndpointHealth(TRANSITIONS[health.state, event], doubt, 0)


def broke(health: EndpointHealth) -> EndpointHealth:
    """The health after a request that could not connect: no more requests before a good probe."""
    return EndpointHealth(TRANSITIONS[health.state, EndpointEvent.BROKE], health.doubt, 0)
