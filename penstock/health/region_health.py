"""Is a region there? A state machine as a table, fed by probes or reports; what the table lacks is an error.

The same machine serves an agent watching its peers and the control plane watching its regions. Detection wants to be
fast and return slow: failure needs `unhealthy_threshold` misses, recovery needs hits, a hold-down, and a ramp. A region
with few ready endpoints keeps its traffic, since plans go by what is ready; its state is degraded.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.policy.policy import Failover

DEGRADED_BELOW = 0.5
"""A region is degraded while less than this part of some model's endpoints there is ready."""

WELL_FROM = 0.75
"""It is well again from this part on: more than the part below which it is degraded, so that it does not flutter."""

TURN_S = 5.0
"""How long (s) either must be so: an endpoint that starts anew is no news."""


class RegionState(StrEnum):
    """What an observer believes of a region."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """There, with few of its endpoints: it serves what they can."""
    SUSPECT = "suspect"
    FAILED = "failed"
    RECOVERING = "recovering"
    DRAINING = "draining"


class RegionEvent(StrEnum):
    """What can happen to that belief."""

    HEARD = "heard"
    """A good probe or report."""
    WEAKENED = "weakened"
    """A good one, and too few endpoints have been ready for a while."""
    MENDED = "mended"
    """A good one, and enough of them have been for a while."""
    MISSED = "missed"
    """One that did not come, or said not ready; not yet enough of them to give up."""
    LOST = "lost"
    """The miss that made it enough."""
    RISEN = "risen"
    """Enough good ones in a row after a failure, and the hold-down is over."""
    RISEN_DRAINED = "risen_drained"
    """The same, while a drain holds that began before the failure or during it."""
    RAMPED = "ramped"
    """The failback ramp has reached its end."""
    DRAIN = "drain"
    UNDRAIN = "undrain"


_S, _E = RegionState, RegionEvent

TRANSITIONS: dict[tuple[RegionState, RegionEvent], RegionState] = {
    (_S.UNKNOWN, _E.HEARD): _S.HEALTHY,
    (_S.UNKNOWN, _E.MISSED): _S.UNKNOWN,
    (_S.UNKNOWN, _E.LOST): _S.FAILED,
    (_S.UNKNOWN, _E.DRAIN): _S.DRAINING,
    (_S.HEALTHY, _E.HEARD): _S.HEALTHY,
    (_S.HEALTHY, _E.WEAKENED): _S.DEGRADED,
    (_S.HEALTHY, _E.MISSED): _S.SUSPECT,
    (_S.HEALTHY, _E.LOST): _S.FAILED,
    (_S.HEALTHY, _E.DRAIN): _S.DRAINING,
    (_S.DEGRADED, _E.HEARD): _S.DEGRADED,
    (_S.DEGRADED, _E.MENDED): _S.HEALTHY,
    (_S.DEGRADED, _E.MISSED): _S.SUSPECT,
    (_S.DEGRADED, _E.LOST): _S.FAILED,
    (_S.DEGRADED, _E.DRAIN): _S.DRAINING,
    (_S.SUSPECT, _E.HEARD): _S.HEALTHY,
    (_S.SUSPECT, _E.WEAKENED): _S.DEGRADED,
    (_S.SUSPECT, _E.MISSED): _S.SUSPECT,
    (_S.SUSPECT, _E.LOST): _S.FAILED,
    (_S.SUSPECT, _E.DRAIN): _S.DRAINING,
    (_S.FAILED, _E.HEARD): _S.FAILED,
    (_S.FAILED, _E.MISSED): _S.FAILED,
    (_S.FAILED, _E.LOST): _S.FAILED,
    (_S.FAILED, _E.RISEN): _S.RECOVERING,
    (_S.FAILED, _E.RISEN_DRAINED): _S.DRAINING,
    (_S.FAILED, _E.DRAIN): _S.FAILED,
    (_S.FAILED, _E.UNDRAIN): _S.FAILED,
    (_S.RECOVERING, _E.HEARD): _S.RECOVERING,
    (_S.RECOVERING, _E.MISSED): _S.RECOVERING,
    (_S.RECOVERING, _E.LOST): _S.FAILED,
    (_S.RECOVERING, _E.RAMPED): _S.HEALTHY,
    (_S.RECOVERING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.HEARD): _S.DRAINING,
    (_S.DRAINING, _E.MISSED): _S.DRAINING,
    (_S.DRAINING, _E.LOST): _S.FAILED,
    (_S.DRAINING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.UNDRAIN): _S.RECOVERING,
}


class RegionHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observer's belief about one region; `observe` and `command` return the next one."""

    state: RegionState = RegionState.UNKNOWN
    since: float = 0.0
    """When the state was entered, in the observer's clock (s)."""
    misses: int = 0
    """Consecutive misses."""
    hits: int = 0
    """Consecutive good ones."""
    drained: bool = False
    """A drain holds, whether or not the region is there: a loss does not end it."""
    weak: bool = False
    """Too few of its endpoints are ready, whether or not that is its state: a miss does not end it."""
    turning_since: float | None = None
    """Since when (s) reports have spoken against `weak` as it is."""

    def weight(self, now: float, failover: Failover) -> float:
        """How much of its share the region may have: 1 when it is there, rising over the ramp, 0 otherwise."""
        if self.state in (RegionState.HEALTHY, RegionState.DEGRADED, RegionState.SUSPECT):
            return 1.0
        if self.state is not RegionState.RECOVERING:
            return 0.0
        if failover.failback_ramp_s <= 0:
            return 1.0
        return max(0.0, min(1.0, (now - self.since) / failover.failback_ramp_s))


def observe(
    health: RegionHealth, good: bool, now: float, failover: Failover, ready_share: float | None = None
) -> RegionHealth:
    """Take in one probe or report: `good` means alive and ready to serve.

    Args:
        ready_share: the part (0-1) of its endpoints that is ready, of the model that has the least; None where that is
            not known, as it is to those who only probe.

    Raises:
        KeyError: the table has no such transition, which is a defect in this module.
    """
    misses = 0 if good else health.misses + 1
    hits = health.hits + 1 if good else 0
    health = _weighed(health, ready_share, now)
    return _enter(health, _event(health, good, misses, hits, now, failover), now, misses, hits)


def command(health: RegionHealth, event: RegionEvent, now: float) -> RegionHealth:
    """Take in an operator's word (drain, undrain); one that the state cannot follow raises KeyError."""
    return _enter(health, event, now, health.misses, health.hits)


def _weighed(health: RegionHealth, ready_share: float | None, now: float) -> RegionHealth:
    """With its endpoints counted: `weak` turns once reports have spoken against it for `TURN_S`."""
    if ready_share is None:
        return health
    turning = ready_share >= WELL_FROM if health.weak else ready_share < DEGRADED_BELOW
    since = (now if health.turning_since is None else health.turning_since) if turning else None
    if since is not None and now - since >= TURN_S:
        return msgspec.structs.replace(health, weak=not health.weak, turning_since=None)
    return health if since == health.turning_since else msgspec.structs.replace(health, turning_since=since)


def _event(health: RegionHealth, good: bool, misses: int, hits: int, now: float, failover: Failover) -> RegionEvent:
    if not good:
        return RegionEvent.LOST if misses >= failover.unhealthy_threshold else RegionEvent.MISSED
    if health.state is RegionState.FAILED:
        rested = now - health.since >= failover.hold_down_s
        if not rested or hits < failover.healthy_threshold:
            return RegionEvent.HEARD
        return RegionEvent.RISEN_DRAINED if health.drained else RegionEvent.RISEN
    if health.state is RegionState.RECOVERING and health.weight(now, failover) >= 1.0:
        return RegionEvent.RAMPED
    if health.weak and health.state in (RegionState.HEALTHY, RegionState.SUSPECT):
        return RegionEvent.WEAKENED
    if health.state is RegionState.DEGRADED and not health.weak:
        return RegionEvent.MENDED
    return RegionEvent.HEARD


def _enter(health: RegionHealth, event: RegionEvent, now: float, misses: int, hits: int) -> RegionHealth:
    state = TRANSITIONS[health.state, event]
    since = health.since if state is health.state else now
    drained = event is RegionEvent.DRAIN or (health.drained and event is not RegionEvent.UNDRAIN)
    return RegionHealth(state, since, misses, hits, drained, health.weak, health.turning_since)
