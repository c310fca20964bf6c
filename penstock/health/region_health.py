"""Decides by probes or reports whether a region is healthy: a state machine as a table; a missing transition is an
error.

The same machine serves an agent that probes its peers and the control plane that receives reports. Detection is fast
and return slow: failure takes `unhealthy_threshold` misses; recovery takes `healthy_threshold` good probes or reports,
a hold-down, and a ramp. A degraded region keeps its traffic, since plans follow ready capacity; the degraded state only
informs operators.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.policy.kinds.spillover_and_failover import Failover

DEGRADED_BELOW = 0.5
"""A region is degraded while less than this share (0-1) of its endpoints of some model is ready."""

HEALTHY_FROM = 0.75
"""Share (0-1) of ready endpoints from which a degraded region is healthy again: above DEGRADED_BELOW, so that the state
does not flap."""

DEGRADED_HOLD_S = 5.0
"""Minimum time (s) for which either condition must hold, so that the restart of one endpoint does not change the
state."""


class RegionState(StrEnum):
    """The state of a region at an observer."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Reachable with few ready endpoints; the region keeps the traffic that these can serve."""
    SUSPECT = "suspect"
    FAILED = "failed"
    RECOVERING = "recovering"
    DRAINING = "draining"


class RegionEvent(StrEnum):
    """The events that change the state."""

    PASSED = "passed"
    """A good probe or report."""
    WEAKENED = "weakened"
    """A good probe or report, and too few endpoints have been ready for DEGRADED_HOLD_S."""
    RESTORED = "restored"
    """A good probe or report, and enough endpoints have been ready for DEGRADED_HOLD_S."""
    MISSED = "missed"
    """A missing probe or report, or one that is not ready, with too few misses for a failure."""
    LOST = "lost"
    """The miss that reaches the threshold of failure."""
    RISEN = "risen"
    """Enough good probes or reports in a row after a failure, and the hold-down is over."""
    RISEN_DRAINED = "risen_drained"
    """As RISEN, while a drain is in force that began before or during the failure."""
    RAMPED = "ramped"
    """The failback ramp has reached its end."""
    DRAIN = "drain"
    UNDRAIN = "undrain"


_S, _E = RegionState, RegionEvent

TRANSITIONS: dict[tuple[RegionState, RegionEvent], RegionState] = {
    (_S.UNKNOWN, _E.PASSED): _S.HEALTHY,
    (_S.UNKNOWN, _E.MISSED): _S.UNKNOWN,
    (_S.UNKNOWN, _E.LOST): _S.FAILED,
    (_S.UNKNOWN, _E.DRAIN): _S.DRAINING,
    (_S.HEALTHY, _E.PASSED): _S.HEALTHY,
    (_S.HEALTHY, _E.WEAKENED): _S.DEGRADED,
    (_S.HEALTHY, _E.MISSED): _S.SUSPECT,
    (_S.HEALTHY, _E.LOST): _S.FAILED,
    (_S.HEALTHY, _E.DRAIN): _S.DRAINING,
    (_S.DEGRADED, _E.PASSED): _S.DEGRADED,
    (_S.DEGRADED, _E.RESTORED): _S.HEALTHY,
    (_S.DEGRADED, _E.MISSED): _S.SUSPECT,
    (_S.DEGRADED, _E.LOST): _S.FAILED,
    (_S.DEGRADED, _E.DRAIN): _S.DRAINING,
    (_S.SUSPECT, _E.PASSED): _S.HEALTHY,
    (_S.SUSPECT, _E.WEAKENED): _S.DEGRADED,
    (_S.SUSPECT, _E.MISSED): _S.SUSPECT,
    (_S.SUSPECT, _E.LOST): _S.FAILED,
    (_S.SUSPECT, _E.DRAIN): _S.DRAINING,
    (_S.FAILED, _E.PASSED): _S.FAILED,
    (_S.FAILED, _E.MISSED): _S.FAILED,
    (_S.FAILED, _E.LOST): _S.FAILED,
    (_S.FAILED, _E.RISEN): _S.RECOVERING,
    (_S.FAILED, _E.RISEN_DRAINED): _S.DRAINING,
    (_S.FAILED, _E.DRAIN): _S.FAILED,
    (_S.FAILED, _E.UNDRAIN): _S.FAILED,
    (_S.RECOVERING, _E.PASSED): _S.RECOVERING,
    (_S.RECOVERING, _E.MISSED): _S.RECOVERING,
    (_S.RECOVERING, _E.LOST): _S.FAILED,
    (_S.RECOVERING, _E.RAMPED): _S.HEALTHY,
    (_S.RECOVERING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.PASSED): _S.DRAINING,
    (_S.DRAINING, _E.MISSED): _S.DRAINING,
    (_S.DRAINING, _E.LOST): _S.FAILED,
    (_S.DRAINING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.UNDRAIN): _S.RECOVERING,
}


class RegionHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """Health of one region at one observer; `observe` and `command` return the next value."""

    state: RegionState = RegionState.UNKNOWN
    since: float = 0.0
    """Time (s), by the observer's clock, at which the state was entered."""
    misses: int = 0
    """Number of consecutive misses."""
    hits: int = 0
    """Number of consecutive good probes or reports."""
    drained: bool = False
    """Whether a drain is in force, in any state of the region; a failure does not end the drain."""
    weak: bool = False
    """Whether too few endpoints of the region are ready, in any state; a miss does not change this value."""
    turning_since: float | None = None
    """Time (s) since which reports contradict `weak`; None if they do not."""

    def weight(self, now: float, failover: Failover) -> float:
        """Part (0-1) of its share that the region may receive: 1 when healthy, rising over the ramp, 0 otherwise."""
        if self.state in (RegionState.HEALTHY, RegionState.DEGRADED, RegionState.SUSPECT):
            return 1.0
        if self.state is not RegionState.RECOVERING:
            return 0.0
        if failover.failback_ramp_s <= 0:
            return 1.0
        return max(0.0, min(1.0, (now - self.since) / failover.failback_ramp_s))


def probe_timeout_s(failover: Failover, rtt_s: float, *, connected: bool, tls: bool) -> float:
    """Return the timeout (s) of a probe: the timeout of the policy plus the round trips that the probe needs.

    Args:
        rtt_s: the usual round trip to the region, in seconds.
        connected: whether the agent responded to the last probe, so that its connection is open. A new connection costs
            a second round trip, and the TLS 1.3 handshake a third.
    """
    round_trips = 1 if connected else 3 if tls else 2
    return failover.probe_timeout_s + round_trips * rtt_s


def observe(
    health: RegionHealth, good: bool, now: float, failover: Failover, ready_share: float | None = None
) -> RegionHealth:
    """The health after one probe or report.

    Args:
        good: whether the region responded or reported, and is ready to serve.
        now: the observer's clock, in seconds.
        ready_share: the lowest share (0-1) of ready endpoints of any model in the region; None if unknown, as after a
            probe.

    Raises:
        KeyError: the table has no such transition, which is a defect in this module.
    """
    misses = 0 if good else health.misses + 1
    hits = health.hits + 1 if good else 0
    health = _with_ready_share(health, ready_share, now)
    return _enter(health, _event(health, good, misses, hits, now, failover), now, misses, hits)


def command(health: RegionHealth, event: RegionEvent, now: float) -> RegionHealth:
    """The health after an operator's command (drain, undrain).

    Raises:
        KeyError: the state allows no such command.
    """
    return _enter(health, event, now, health.misses, health.hits)


def _with_ready_share(health: RegionHealth, ready_share: float | None, now: float) -> RegionHealth:
    """The health with `weak` updated, which changes once reports have contradicted it for `DEGRADED_HOLD_S`."""
    if ready_share is None:
        return health
    turning = ready_share >= HEALTHY_FROM if health.weak else ready_share < DEGRADED_BELOW
    since = (now if health.turning_since is None else health.turning_since) if turning else None
    if since is not None and now - since >= DEGRADED_HOLD_S:
        return msgspec.structs.replace(health, weak=not health.weak, turning_since=None)
    return health if since == health.turning_since else msgspec.structs.replace(health, turning_since=since)


def _event(health: RegionHealth, good: bool, misses: int, hits: int, now: float, failover: Failover) -> RegionEvent:
    if not good:
        return RegionEvent.LOST if misses >= failover.unhealthy_threshold else RegionEvent.MISSED
    if health.state is RegionState.FAILED:
        rested = now - health.since >= failover.hold_down_s
        if not rested or hits < failover.healthy_threshold:
            return RegionEvent.PASSED
        return RegionEvent.RISEN_DRAINED if health.drained else RegionEvent.RISEN
    if health.state is RegionState.RECOVERING and health.weight(now, failover) >= 1.0:
        return RegionEvent.RAMPED
    if health.weak and health.state in (RegionState.HEALTHY, RegionState.SUSPECT):
        return RegionEvent.WEAKENED
    if health.state is RegionState.DEGRADED and not health.weak:
        return RegionEvent.RESTORED
    return RegionEvent.PASSED


def _enter(health: RegionHealth, event: RegionEvent, now: float, misses: int, hits: int) -> RegionHealth:
    state = TRANSITIONS[health.state, event]
    since = health.since if state is health.state else now
    drained = event is RegionEvent.DRAIN or (health.drained and event is not RegionEvent.UNDRAIN)
    return RegionHealth(state, since, misses, hits, drained, health.weak, health.turning_since)
