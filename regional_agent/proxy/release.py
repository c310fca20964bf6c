"""The end of a request: everything that it holds is released, exactly once, and then its account is recorded."""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcomes import Outcome
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.queue_dispatcher import QueueEntry

_OK: Final = Outcome.OK
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


def release_request(
    proxy: Proxy,
    context: RequestContext,
    attempt: Attempt | None,
    queue_entry: QueueEntry | None,
    service_s: float | None,
    account: Account,
) -> None:
    """Release the queue entry, the reservation and the quota of a request, and record its account.

    Args:
        attempt: the current attempt, which holds a reservation; None without one.
        queue_entry: the entry of a request that waits; None for any other.
        service_s: service time (s) of a complete response of this attempt; None for any other outcome.
    """
    # All resources are released before the outcome is recorded, so that a failed recording cannot leak a slot.
    try:
        if queue_entry is not None:
            context.queued_s += account.ended_at - queue_entry.since
            proxy.router.leave(queue_entry)
    finally:
        try:
            if attempt is not None:
                usage = account.measured_usage if account.outcome is _OK else None
                attempt.settle(account.ended_at, service_s, usage)
        finally:
            if context.counted:
                proxy.router.requests.authorization.release_quota(context.facts.tenant)
    proxy.recorder.record(context, attempt, account)
