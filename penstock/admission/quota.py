"""A tenant's quota at one agent: a token bucket for its rate, a count for what runs at once.

A policy's quota is for each region. Each of a region's agents enforces an equal part of it, so that no request waits
for another process; a tenant whose requests come to one agent alone gets that agent's part.
"""

from __future__ import annotations

import msgspec

from penstock.policy.policy import Quota


class Use(msgspec.Struct, frozen=True):
    """What a tenant uses of its quota at one agent."""

    tokens: float
    """Requests that may start now without waiting."""
    at: float
    """When that was so, by the agent's clock (s)."""
    running: int = 0
    """Requests that have started and not ended."""


class Exceeded(msgspec.Struct, frozen=True):
    """A request that its tenant's quota does not allow now."""

    what: str
    """Which limit, for people."""
    retry_after_s: float | None
    """When the rate allows the next one; None where one that runs has to end first, and nobody knows when."""


def unused(quota: Quota, agents: int, now: float) -> Use:
    """The use of a tenant that has asked for nothing lately: a whole burst is left."""
    return Use(burst(quota, agents), now)


def burst(quota: Quota, agents: int) -> float:
    """How many requests an agent lets through at once after a pause: its part, and at least one."""
    return max(1.0, quota.burst_requests / agents)


def max_running(quota: Quota, agents: int) -> int | None:
    """How many requests an agent lets run at once: its part, and at least one. None for no limit."""
    return None if quota.concurrent is None else max(1, round(quota.concurrent / agents))


def start(use: Use, quota: Quota, agents: int, now: float) -> Use | Exceeded:
    """Let one more request start, or say which limit it would go beyond.

    Args:
        agents: of the region, this one among them.
        now: the agent's clock, in seconds; never behind `use.at`.
    """
    most = max_running(quota, agents)
    if most is not None and use.running >= most:
        return Exceeded(f"{use.running} requests of it are running here, as many as may", None)
    if quota.requests_per_s is None:
        return Use(use.tokens, now, use.running + 1)
    per_s = quota.requests_per_s / agents
    tokens = min(burst(quota, agents), use.tokens + (now - use.at) * per_s)
    if tokens < 1.0:
        return Exceeded(f"it asks for more than {per_s:g} requests a second here", (1.0 - tokens) / per_s)
    return Use(tokens - 1.0, now, use.running + 1)


def end(use: Use) -> Use:
    """One of its requests has ended, however."""
    return msgspec.structs.replace(use, running=max(0, use.running - 1))
