"""The agents of a region count the work of each tenant at all of them."""

from __future__ import annotations

from penstock.admission.region_work import (
    KEEP_S,
    RegionWork,
    differences,
)

MAX_PUBLISHED = 64
MIN_SWEEP = 64
"""As documented, and not imported: a test fails if a tuned constant changes."""

M, P = "m", 0


def start(work: RegionWork, tenant: str, work_s: float, weight: float = 1.0) -> None:
    work.of(M).start(P, tenant, weight, work_s, 0.0).end(work_s, work_s)


def test_another_agent_counts_each_change_once() -> None:
    here, there = RegionWork(), RegionWork()
    there.of(M).of(P).join("other", 1.0)
    start(here, "a", 3.0, weight=2.0)
    first = here.totals(1.0)
    assert first == {M: [(P, "a", 1_500_000)]}
    start(here, "a", 1.0)
    running = here.of(M).start(P, "b", 1.0, 4.0, 0.0)
    second = here.totals(2.0)
    running.end(4.0, 0.5)
    third = here.totals(2.5)
    there.started_elsewhere(differences({}, first), 0.0)
    there.started_elsewhere(differences(first, second), 0.0)
    there.started_elsewhere(differences(second, third), 0.0)
    there.started_elsewhere(differences(third, here.totals(2.6)), 0.0)
    counters = there.of(M).of(P)
    assert counters.tenants["a"].received_s == 2.5
    assert counters.tenants["b"].received_s == 1.5 + 0.5, "it began where the tenant was that had been served last"
    assert there.totals(3.0) == {}, "an agent publishes only its own"


def test_a_total_without_changes_is_published_for_a_while_and_begins_at_zero_again() -> None:
    work = RegionWork()
    start(work, "a", 3.0)
    assert work.totals(0.0) == work.totals(KEEP_S - 0.1) == {M: [(P, "a", 3_000_000)]}
    assert work.totals(KEEP_S) == {}
    start(work, "a", 1.0)
    assert work.totals(KEEP_S + 1.0) == {M: [(P, "a", 1_000_000)]}


def test_the_total_continues_if_the_counter_was_removed_and_created_again() -> None:
    work = RegionWork()
    start(work, "a", 3.0)
    work.totals(0.0)
    waits = work.of(M).of(P).join("waits", 1.0)
    for number in range(2 * MIN_SWEEP):
        start(work, "busy", 10.0)
        start(work, str(number), 0.001)
    assert "a" not in work.of(M).of(P).tenants
    start(work, "a", 1.0)
    assert (P, "a", 4_000_000) in work.totals(1.0)[M]
    work.of(M).of(P).leave(waits)


def test_the_number_of_published_tenants_is_bounded() -> None:
    work = RegionWork()
    for number in range(3 * MAX_PUBLISHED):
        work.of(M).start(P, str(number), 1.0, 1.0, 0.0)
    totals = work.totals(0.0)[M]
    assert len(totals) == MAX_PUBLISHED
    assert str(3 * MAX_PUBLISHED - 1) in {tenant for _, tenant, _ in totals}
