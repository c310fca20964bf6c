"""Selects the store of a tenant's files and batches; a store that residency forbids is never selected."""

from __future__ import annotations

from penstock.policy.kinds.jobs import JobStore
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal


def select_store(policy: Policy, region: str, permitted: frozenset[str]) -> JobStore | Refusal:
    """The store for files and batches that reach `region`, or the refusal.

    It is selected only for requests that may run in every region whose agents can read it.

    Args:
        permitted: the regions that residency permits.
    """
    store = policy.job_store(region)
    if store is None:
        return Refusal(Reason.NOT_OFFERED, f"the policy has no job store for the region {region}")
    forbidden = sorted(store.readers - permitted)
    if forbidden:
        detail = f"agents of {', '.join(forbidden)} read the job store of this region; the request may not run there"
        return Refusal(Reason.RESIDENCY_DENIED, detail)
    return store
