"""No tenant's jobs wait for all jobs of another tenant."""

from __future__ import annotations

from random import Random

from penstock.jobs import store_paths
from penstock.jobs.job_order import fair_order
from penstock.jobs.store_paths import BATCH, JOB, JobPaths

NOW = 1.8e9


def job(tenant: str, age_s: float, prefix: str = JOB) -> JobPaths:
    return JobPaths(tenant, store_paths.new_id(prefix, NOW - age_s, b"0123456789"))


def test_the_tenant_with_fewer_running_jobs_is_first_and_the_oldest_of_a_tenant() -> None:
    running = [job("a", age) for age in (100, 99)]
    waiting = [job("a", age) for age in (98, 97, 96)]
    other, batch = job("b", 1), job("a", 50, BATCH)
    found = fair_order([*waiting, *running, batch, other], {each.id for each in running}, NOW, Random(1))
    without = [each for each in found if each not in running]
    assert set(without[:2]) == {other, batch}
    assert without[2:] == waiting


def test_tenants_take_turns_whatever_the_number_of_their_jobs() -> None:
    jobs = [*(job("a", age) for age in range(10, 20)), *(job("b", age) for age in range(5))]
    tenants = [each.tenant for each in fair_order(jobs, (), NOW, Random(1))]
    assert [set(tenants[at : at + 2]) for at in range(0, 10, 2)] == [{"a", "b"}] * 5
    assert tenants[10:] == ["a"] * 5


def test_a_job_with_an_idempotency_key_does_not_wait_for_all_later_jobs() -> None:
    keyed = JobPaths("a", JOB + "f" * 32)
    assert fair_order([job("a", 2), keyed, job("a", 1)], (), NOW, Random(1))[0] == keyed


def test_tenants_with_equally_many_running_jobs_take_turns() -> None:
    jobs = [*(job("a", age) for age in range(2, 40)), job("b", 1)]
    firsts = {fair_order(jobs, (), NOW, Random(seed))[0].tenant for seed in range(50)}
    assert firsts == {"a", "b"}
