"""Counts the usage of tenants' quotas at this agent; each counted request is released once."""

from __future__ import annotations

from collections.abc import Callable

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.admission.token_bucket import QuotaExceeded, QuotaUsage, end, start, unused
from penstock.policy.kinds.tenants import Tenant
from penstock.routing.reasons import Reason, Refusal

RECOUNT_S = 1.0
"""Time (s) for which the number of this region's agents is cached."""


class Quotas:
    """Limits tenants to this agent's part of their quotas."""

    def __init__(self, agents_here: Callable[[], int]) -> None:
        """Create empty counts.

        Args:
            agents_here: returns the number of this region's agents.
        """
        self._agents_here = agents_here
        self._agents = 1
        self._counted_at: float | None = None
        self._uses: dict[str, QuotaUsage] = {}

    def start(self, tenant: Tenant, now: float) -> Refusal | bool:
        """Admit a tenant's request, or refuse it; True if it was counted, so that `end` must release it."""
        quota = tenant.quota
        if quota is None:
            return False
        if self._counted_at is None or now - self._counted_at >= RECOUNT_S:
            self._agents, self._counted_at = max(1, self._agents_here()), now
        before = self._uses.get(tenant.name) or unused(quota, self._agents, now)
        use = start(before, quota, self._agents, now)
        if isinstance(use, QuotaExceeded):
            return Refusal(
                Reason.QUOTA_EXCEEDED,
                f"tenant {tenant.name} is at its quota: {use.what}",
                retry_after_s=use.retry_after_s or MIN_RETRY_S,
                tenant=tenant.name,
            )
        self._uses[tenant.name] = use
        return True

    def end(self, tenant: str) -> None:
        """Release a request that `start` counted."""
        use = self._uses.get(tenant)
        if use is not None:
            self._uses[tenant] = end(use)

    def running(self, tenant: str) -> int:
        """Running requests of a tenant; 0 for a tenant without a quota."""
        use = self._uses.get(tenant)
        return use.running if use is not None else 0
