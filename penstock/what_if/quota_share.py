"""The share of a demand that tenants' quotas admit at the entry regions, in the steady state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock.policy.policy import Policy


def admitted_shares(
    policy: Policy, demand: Sequence[tuple[str, str, str, float] | None], service_s: Mapping[str, float]
) -> list[float]:
    """The share (0-1) of each demand group that its tenant's quota admits.

    A quota applies in each entry region separately. Bursts are ignored, and the load is assumed to be even over the
    agents of a region. Concurrency is the rate times the service time (Little's law).

    Args:
        policy: gives the quotas and the expected service times.
        demand: per group its entry region, tenant, model and rate in 1/s; None for a group rejected before.
        service_s: service time in seconds by model; defaults to the policy's expected service time.
    """
    rates: dict[tuple[str, str], float] = defaultdict(float)
    running: dict[tuple[str, str], float] = defaultdict(float)
    for group in demand:
        if group is not None:
            entry, tenant, model, per_s = group
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
    return [1.0 if group is None else shares[group[0], group[1]] for group in demand]
