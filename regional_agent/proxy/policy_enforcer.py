"""Ends open requests that a new policy, or a change of their tenant, no longer permits.

Requests in the queue, requests that await a response, streams, uploads and tunnels end alike.

The requests are evaluated in slices of a few milliseconds, between which the event loop serves other requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import structlog

from penstock.policy.policy import Policy
from penstock.routing.reasons import Refusal
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.proxy.timer_wheel import SLOT_S, Checked
from regional_agent.requests.reauthorization import Reauthorization
from regional_agent.requests.request_context import RequestContext

SLICE_S: Final = 0.005
"""Time (s) for which one slice occupies the event loop."""

MAX_LOGGED: Final = 20
"""Maximum number of pairs of tenant and reason in a log line; the access log contains every request."""

log = structlog.get_logger()


class ActiveExchange(Checked, Protocol):
    """An exchange in progress."""

    context: RequestContext

    def shut_down(self) -> None:
        """End the exchange because the agent stops."""

    def reauthorize(self) -> Refusal | None:
        """End the exchange if the policy in force no longer permits it; returns the reason if it does so."""


class PolicyEnforcer:
    """Evaluates the open requests after each change of policy, and those of a tenant after a change of the tenant."""

    def __init__(self, reauthorization: Reauthorization, active: Iterable[ActiveExchange]) -> None:
        """Enforce the policy in force on the exchanges in progress, `active`."""
        self._reauthorization = reauthorization
        self._active = active
        self._enforced: Policy | None = None
        self._tenants_version = 0

    async def run(self) -> None:
        """Wait for changes of policy and of tenants, and enforce each."""
        while True:
            await sleep_until_tick(SLOT_S)
            policy, version = self._reauthorization.policy, self._reauthorization.tenants_version
            if policy is not None and (policy is not self._enforced or version != self._tenants_version):
                await self._enforce(policy)
                self._enforced, self._tenants_version = policy, version

    async def _enforce(self, policy: Policy) -> None:
        """Evaluate the open requests. Requests that start meanwhile are read under the policy in force."""
        ended: Counter[tuple[str, str]] = Counter()
        clock = time.perf_counter
        slice_end = clock() + SLICE_S
        remaining = list(self._active)
        while remaining:
            # The list drops its reference now, since to free thousands of exchanges at once takes tens of milliseconds.
            exchange = remaining.pop()
            refusal = self._reauthorize(exchange)
            if refusal is not None:
                ended[exchange.context.facts.tenant, refusal.reason.value] += 1
            if clock() >= slice_end:
                await asyncio.sleep(0)
                slice_end = clock() + SLICE_S
        if ended:
            log.warning(
                "open requests ended: the policy in force, a revoked key or their tenant does not permit them",
                policy=policy.digest()[:12],
                requests=ended.total(),
                by_tenant_and_reason=[
                    {"tenant": tenant, "reason": reason, "requests": requests}
                    for (tenant, reason), requests in ended.most_common(MAX_LOGGED)
                ],
            )

    def _reauthorize(self, exchange: ActiveExchange) -> Refusal | None:
        try:
            return None if self._reauthorization.is_current(exchange.context) else exchange.reauthorize()
        except Exception:
            # A defect that prevents the end of one request must not prevent the evaluation of the other requests.
            log.exception("an open request could not be ended", tenant=exchange.context.facts.tenant)
            return None
