"""A tenant's quota at one agent: a token bucket for its rate, and a limit on concurrent requests.

A policy's quota is for each region. Each of a region's agents enforces an equal part of it, so that no request waits
for another process; a tenant whose requests all reach one agent is limited to the part of that agent.

The agent keeps the usage of each tenant in `regional_agent/requests/tenant_quotas.py`.
"""

from __future__ import annotations

import msgspec

from penstock.policy.kinds.tenants import Quota


class QuotaUsage(msgspec.Struct, frozen=True):
    """A tenant's usage of its quota at one agent."""

    tokens: float
    """Requests that may start now without waiting."""
    at: float
    """Time (s) at which `tokens` was computed, by the agent's clock."""
    running: int = 0
    """Requests that have started and not ended."""


class QuotaExceeded(msgspec.Struct, frozen=True):
    """The refusal of a request that its tenant's quota does not allow now."""

    what: str
    """Description of the limit, for the error message."""
    retry_after_s: float | None
    """Time (s) until the rate allows the next request; None if a running request must end first."""


def unused(quota: Quota, agents: int, now: float) -> QuotaUsage:
    """Return the usage of a tenant without recent requests: the whole burst is available."""
    return QuotaUsage(burst(quota, agents), now)


def burst(quota: Quota, agents: int) -> float:
    """Return the number of requests that an agent admits at once after a pause: its part of the burst, at least one."""
    return max(1.0, quota.burst / agents)


def max_running(quota: Quota, agents: int) -> int | None:
    """Return the number of concurrent requests that an agent admits: its part, at least one. None for no limit."""
    return None if quota.concurrent is None else max(1, round(quota.concurrent / agents))


def start(use: QuotaUsage, quota: Quota, agents: int, now: float) -> QuotaUsage | QuotaExceeded:
    """Admit one more request, or return the limit that it would exceed.

    Args:
        agents: number of agents of the region, this agent included.
        now: the agent's clock, in seconds; never behind `use.at`.
    """
    most = max_running(quota, agents)
    if most is not None and use.running >= most:
        return QuotaExceeded(f"{use.running} of its requests are running here, which is the limit", None)
    if quota.requests_per_s is None:
        return QuotaUsage(use.tokens, now, use.running + 1)
    per_s = quota.requests_per_s / agents
    tokens = min(burst(quota, agents), use.tokens + (now - use.at) * per_s)
    if tokens < 1.0:
        return QuotaExceeded(f"it sends more than {per_s:g} requests a second here", (1.0 - tokens) / per_s)
    return QuotaUsage(tokens - 1.0, now, use.running + 1)


def end(use: QuotaUsage) -> QuotaUsage:
    """Return the usage after one of the tenant's requests has ended."""
    return msgspec.structs.replace(use, running=max(0, use.running - 1))
