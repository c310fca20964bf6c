"""Decides by health probes whether an endpoint may take requests: a state machine as a table.

A busy engine responds late to health probes long before it fails, so a late response counts half as much as a refusal,
and neither counts while requests on the endpoint explain it (`penstock.health.unanswered_probes`): load alone must not
take endpoints out of service.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EndpointState(StrEnum):
    """The state of one endpoint at one agent."""

    NEW = "new"
    """Not probed yet, or a request failed to connect after the last probe; one good probe makes the endpoint ready."""
    READY = "ready"
    FAILING = "failing"
    """Ready, but the last probe was not good."""
    DOWN = "down"


class ProbeOutcome(StrEnum):
    """The result of one health probe."""

    GOOD = "good"
    UNREADY = "unready"
    """A response that means that the endpoint is not ready."""
    UNREACHABLE = "unreachable"
    """The connection failed or broke."""
    SLOW = "slow"
    """No response within the timeout."""
    BUSY = "busy"
    """A response that means that the endpoint is well and runs another request."""


class EndpointEvent(StrEnum):
    """The effect of a probe or a request on the state."""

    PASSED = "passed"
    RISE = "rise"
    """The last of enough good probes."""
    FAILED = "failed"
    FALL = "fall"
    """A failed probe with which the failure points reach the threshold."""
    EXCUSED = "excused"
    """A probe that was late or refused because of a running request, or answered with the state busy."""
    CONNECTION_FAILED = "connection_failed"
    """A request could not connect."""


_S, _E = EndpointState, EndpointEvent

TRANSITIONS: dict[tuple[EndpointState, EndpointEvent], EndpointState] = {
    (_S.NEW, _E.RISE): _S.READY,
    (_S.NEW, _E.FAILED): _S.NEW,
    (_S.NEW, _E.FALL): _S.DOWN,
    (_S.NEW, _E.EXCUSED): _S.NEW,
    (_S.NEW, _E.CONNECTION_FAILED): _S.NEW,
    (_S.READY, _E.PASSED): _S.READY,
    (_S.READY, _E.FAILED): _S.FAILING,
    (_S.READY, _E.FALL): _S.DOWN,
    (_S.READY, _E.EXCUSED): _S.READY,
    (_S.READY, _E.CONNECTION_FAILED): _S.NEW,
    (_S.FAILING, _E.PASSED): _S.READY,
    (_S.FAILING, _E.FAILED): _S.FAILING,
    (_S.FAILING, _E.FALL): _S.DOWN,
    (_S.FAILING, _E.EXCUSED): _S.FAILING,
    (_S.FAILING, _E.CONNECTION_FAILED): _S.NEW,
    (_S.DOWN, _E.PASSED): _S.DOWN,
    (_S.DOWN, _E.RISE): _S.READY,
    (_S.DOWN, _E.FAILED): _S.DOWN,
    (_S.DOWN, _E.FALL): _S.DOWN,
    (_S.DOWN, _E.EXCUSED): _S.DOWN,
    (_S.DOWN, _E.CONNECTION_FAILED): _S.DOWN,
}

FAILURE_POINTS = {ProbeOutcome.UNREADY: 2, ProbeOutcome.UNREACHABLE: 2, ProbeOutcome.SLOW: 1}
"""Failure points of one probe, by outcome; a good probe resets their sum."""

LATE_PER_FAILURE = 2
"""Number of late responses that count as much as one failed probe."""


class HealthThresholds(msgspec.Struct, frozen=True):
    """How many probes in a row change the state."""

    unhealthy: int = 2
    """Failed probes after which an endpoint is down; late ones count half."""
    healthy: int = 2
    """Good probes after which an endpoint that was down is ready; for a new endpoint one is enough."""


DEFAULT_THRESHOLDS = HealthThresholds()


class EndpointHealth(msgspec.Struct, frozen=True):
    """One endpoint's health at one agent; `probed` and `connection_failed` return the next one."""

    state: EndpointState = EndpointState.NEW
    failure_points: int = 0
    hits: int = 0
    """Consecutive good probes."""

    @classmethod
    def at_first(cls, *, is_probed: bool) -> EndpointHealth:
        """The health before any probe; an endpoint that is never probed is ready, and its requests judge it."""
        return cls() if is_probed else cls(EndpointState.READY)

    @property
    def ready(self) -> bool:
        """Whether the endpoint may receive requests."""
        return self.state in (EndpointState.READY, EndpointState.FAILING)


def probed(
    health: EndpointHealth,
    outcome: ProbeOutcome,
    thresholds: HealthThresholds = DEFAULT_THRESHOLDS,
    *,
    explained: bool = False,
) -> EndpointHealth:
    """The health after one probe.

    Args:
        health: the previous health.
        outcome: the result of the probe.
        thresholds: how many probes change the state.
        explained: requests on the endpoint explain a probe that is late or refused.

    Raises:
        KeyError: the table has no such transition, which is a defect in this module.
    """
    if outcome is ProbeOutcome.BUSY or (explained and outcome in (ProbeOutcome.SLOW, ProbeOutcome.UNREACHABLE)):
        state = TRANSITIONS[health.state, EndpointEvent.EXCUSED]
        return EndpointHealth(state, health.failure_points, health.hits)
    if outcome is ProbeOutcome.GOOD:
        hits = health.hits + 1
        needed = {EndpointState.NEW: 1, EndpointState.DOWN: thresholds.healthy}.get(health.state)
        event = EndpointEvent.RISE if needed is not None and hits >= needed else EndpointEvent.PASSED
        return EndpointHealth(TRANSITIONS[health.state, event], 0, hits)
    fall_at = LATE_PER_FAILURE * thresholds.unhealthy
    failure_points = min(fall_at, health.failure_points + FAILURE_POINTS[outcome])
    event = EndpointEvent.FALL if failure_points >= fall_at else EndpointEvent.FAILED
    return EndpointHealth(TRANSITIONS[health.state, event], failure_points, 0)


def connection_failed(health: EndpointHealth) -> EndpointHealth:
    """The health after a request that could not connect: no more requests before a good probe."""
    return EndpointHealth(TRANSITIONS[health.state, EndpointEvent.CONNECTION_FAILED], health.failure_points, 0)
