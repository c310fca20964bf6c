"""The order in which the jobs of several tenants start: no tenant waits for all jobs of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from random import Random

from penstock.jobs.store_paths import JobPaths, created_at, is_batch


def fair_order(jobs: Sequence[JobPaths], running: Collection[str], now: float, rng: Random) -> list[JobPaths]:
    """Sort open jobs: of each kind, those of the tenant with the fewest running jobs first; of a tenant, oldest first.

    Args:
        running: identifiers of the jobs that run.
        now: Unix time (s). A later time in an identifier is none: the identifier was made from an Idempotency-Key, and
            the job's age is unknown. Such jobs start first among those of their tenant.
        rng: decides between tenants with equally many running jobs.
    """
    turns: Counter[tuple[bool, str]] = Counter()
    lots: dict[str, float] = {}
    ranked = []
    for paths in sorted(jobs, key=lambda job: (job.id not in running, _age_order(job.id, now))):
        kind = is_batch(paths.id)
        lot = lots.setdefault(paths.tenant, rng.random())
        ranked.append((turns[kind, paths.tenant], lot, paths))
        turns[kind, paths.tenant] += 1
    return [paths for _, _, paths in sorted(ranked, key=lambda each: each[:2])]


def _age_order(job: str, now: float) -> float:
    created = created_at(job)
    return created if created <= now else 0.0
