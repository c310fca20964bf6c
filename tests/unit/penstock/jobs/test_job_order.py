"""Jobs in the order of their deadlines; no tenant's jobs wait for all jobs of another tenant."""

from __future__ import annotations

from random import Random

from penstock.jobs import store_paths
from penstock.jobs.job_order import RunningBatch, fair_order, request_shares
from penstock.jobs.store_paths import BATCH, JOB, JobPaths, OpenJob

NOW = 1.8e9


def job(tenant: str, deadline_in_s: float, prefix: str = JOB) -> OpenJob:
    paths = JobPaths(tenant, store_paths.new_id(prefix, NOW - deadline_in_s, b"0123456789"))
    return OpenJob(paths, NOW + deadline_in_s, paths.mark("eu", int(NOW + deadline_in_s)))


def test_the_tenant_with_fewer_running_jobs_is_first_and_the_earliest_deadline_of_a_tenant() -> None:
    running = [job("a", 100), job("a", 99)]
    waiting = [job("a", 7), job("a", 8), job("a", 9)]
    other, batch = job("b", 1000), job("a", 50, BATCH)
    found = fair_order([*reversed(waiting), *running, batch, other], {each.paths.id for each in running}, Random(1))
    without = [each for each in found if each not in running]
    assert set(without[:2]) == {other, batch}
    assert without[2:] == waiting


def test_tenants_take_turns_whatever_the_number_and_deadlines_of_their_jobs() -> None:
    jobs = [*(job("a", deadline) for deadline in range(10)), *(job("b", deadline) for deadline in range(20, 25))]
    tenants = [each.paths.tenant for each in fair_order(jobs, (), Random(1))]
    assert [set(tenants[at : at + 2]) for at in range(0, 10, 2)] == [{"a", "b"}] * 5
    assert tenants[10:] == ["a"] * 5
    firsts = {fair_order(jobs, (), Random(seed))[0].paths.tenant for seed in range(50)}
    assert firsts == {"a", "b"}


def test_of_one_tenant_a_job_and_a_batch_are_ordered_by_their_deadlines() -> None:
    for seconds in (10.0, 90.0):
        jobs = [job("a", seconds), job("a", 50.0, BATCH)]
        first = jobs[0] if seconds < 50.0 else jobs[1]
        assert fair_order(jobs, (), Random(1))[0] is first


def shares(limit: int, *batches: tuple[str, float, int]) -> list[int]:
    """The shares of batches: tenant, deadline and requests without a result of each."""
    running = [RunningBatch(str(number), *batch) for number, batch in enumerate(batches)]
    found = request_shares(limit, running)
    return [found[batch.id] for batch in running]


def test_the_batch_with_the_earliest_deadline_has_most_of_its_tenants_part() -> None:
    assert shares(64, ("a", 9, 1000), ("a", 1, 1000), ("a", 5, 1000)) == [4, 48, 12]
    assert shares(64, ("a", 9, 1000), ("a", 1, 10)) == [54, 10], "what it does not need is for the next one"
    assert shares(64, ("a", 9, 2), ("a", 1, 1000)) == [2, 62], "nothing is kept for what the next one does not need"


def test_tenants_have_equal_parts_as_far_as_they_need_them() -> None:
    assert shares(64, ("a", 1, 1000), ("b", 9, 1000), ("b", 8, 1000)) == [32, 8, 24]
    assert shares(64, ("a", 1, 4), ("b", 9, 1000)) == [4, 60]
    assert shares(1, ("a", 1, 1000), ("b", 9, 1000)) == [1, 1], "each batch goes on"
    assert shares(64) == []
