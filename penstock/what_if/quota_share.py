"""What tenants' quotas let in of a demand, where it comes in: its share, as agents would in the long run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock.policy.policy import Policy


def let_in(
    policy: Policy, coming: Sequence[tuple[str, str, str, float] | None], service_s: Mapping[str, float]
) -> list[float]:
    """The share (0-1) of each kind of request that its tenant's quota admits.

    A quota is for each region that clients come to. Bursts are over and clients are spread evenly over the agents of a
    region, so that rates alone count; what runs at once is how often it comes times how long it takes.

    Args:
        coming: by kind of request the entry, tenant, model and rate (1/s); None for what is refused before.
        service_s: by model, how long (s) a request takes; what is not there takes as long as policy expects.
    """
    rates: dict[tuple[str, str], float] = defaultdict(float)
    running: dict[tuple[str, str], float] = defaultdict(float)
    for one in coming:
        if one is not None:
            entry, tenant, model, per_s = one
            rates[entry, tenant] += per_s
            running[entry, tenant] += per_s * service_s.get(model, policy.models[model].expected_service_s)
    shares = {}
    for (entry, tenant), per_s in rates.items():
        quota = policy.tenants[tenant].quota
        share = 1.0
        if quota is not None and quota.requests_per_s is not None and per_s > quota.requests_per_s:
            share = quota.requests_per_s / per_s
        if quota is not None and quota.concurrent is not None and running[entry, tenant] > quota.concurrent:
            share = min(share, quota.concurrent / running[entry, tenant])
        shares[entry, tenant] = share
    return [1.0 if one is None else shares[one[0], one[1]] for one in coming]
