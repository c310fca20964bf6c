"""The order in which jobs start and are served: the earliest deadline first, and tenants by turns.

The earliest deadline first (Liu and Layland, JACM 1973) meets all deadlines if any order does. It applies within a
tenant: a tenant with short deadlines takes nothing from others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

from penstock.jobs.store_paths import OpenJob, is_batch

LATER_PART: Final = 4
"""One of so many requests of a tenant is of a batch with a later deadline: its models may have idle slots while those
of the first batch have none."""


def fair_order(jobs: Sequence[OpenJob], running: Collection[str], rng: Random) -> list[OpenJob]:
    """Sort open jobs: of each kind, those of the tenant with the fewest running jobs first; of a tenant, those with the
    earliest deadline.

    Args:
        running: identifiers of the jobs that run.
        rng: decides between tenants with equally many running jobs.
    """
    turns: Counter[tuple[bool, str]] = Counter()
    lots: dict[str, float] = {}
    ranked = []
    for job in sorted(jobs, key=lambda each: (each.paths.id not in running, each.deadline_at)):
        kind, tenant = is_batch(job.paths.id), job.paths.tenant
        lot = lots.setdefault(tenant, rng.random())
        ranked.append((turns[kind, tenant], lot, job))
        turns[kind, tenant] += 1
    return [job for _, _, job in sorted(ranked, key=lambda each: each[:2])]


class RunningBatch(NamedTuple):
    """A batch that an agent runs."""

    id: str
    tenant: str
    deadline_at: float
    """Unix time (s)."""
    requests_left: int
    """Requests without a result."""


def request_shares(limit: int, batches: Iterable[RunningBatch]) -> dict[str, int]:
    """How many requests each batch may run or queue at a time: at least 1, and about `limit` together.

    Tenants have equal parts, as far as they need them. Of a tenant's part, the batch with the earliest deadline has all
    that it needs, but for one of LATER_PART.
    """
    by_tenant: defaultdict[str, list[RunningBatch]] = defaultdict(list)
    for batch in sorted(batches, key=lambda each: each.deadline_at):
        by_tenant[batch.tenant].append(batch)
    needs = sorted((sum(each.requests_left for each in own), tenant) for tenant, own in by_tenant.items())
    shares = {}
    for tenants_left, (need, tenant) in zip(range(len(needs), 0, -1), needs, strict=True):
        part = min(need, limit // tenants_left)
        limit -= part
        for batch in by_tenant[tenant]:
            need -= batch.requests_left
            shares[batch.id] = max(1, min(batch.requests_left, part - min(need, part // LATER_PART)))
            part = max(0, part - shares[batch.id])
    return shares
