import msgspec

from penstock.fleet.jobs_report import MAX_BATCHES, BatchReport, JobsReport
from penstock.fleet.report import AgentReport, CountryReport, SpilloverReport, TenantReport, busiest_tenants
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.fleet.traffic_view import countries, jobs, spillover, tenants

FADED_S = 15.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def snapshot(*received_at: float) -> Snapshot:
    report = AgentReport(
        "a",
        "1",
        1,
        1,
        0.0,
        countries=(CountryReport("DE", 1.0), CountryReport("", 3.0)),
        spillover=(SpilloverReport("m", 1, 5, 2, 3),),
        tenants=(TenantReport("a", 1, 0), TenantReport("b", 0, 3)),
    )
    return Snapshot(
        {
            ("a", str(number)): HeldReport(msgspec.structs.replace(report, agent=str(number)), at)
            for number, at in enumerate(received_at)
        }
    )


def test_sums_the_agents_of_a_region() -> None:
    both = snapshot(0.0, 0.0)
    assert countries(both, "a", 0.0) == (CountryReport("", 6.0), CountryReport("DE", 2.0))
    assert spillover(both, "a", 0.0) == (SpilloverReport("m", 2, 10, 4, 6),)
    assert tenants(both, "a", 0.0) == (TenantReport("b", 0, 6), TenantReport("a", 2, 0))
    assert countries(both, "b", 0.0) == spillover(both, "b", 0.0) == ()


def test_an_old_report_has_no_weight() -> None:
    old = snapshot(0.0, FADED_S)
    assert countries(old, "a", FADED_S) == (CountryReport("", 3.0), CountryReport("DE", 1.0))
    assert spillover(old, "a", FADED_S) == (SpilloverReport("m", 1, 5, 2, 3),)
    assert tenants(old, "a", FADED_S)[0] == TenantReport("b", 0, 3)


def test_the_busiest_tenants_are_kept() -> None:
    parts = [TenantReport(f"t{number}", number, 0) for number in range(30)]
    kept = busiest_tenants([*parts, TenantReport("t0", 0, 100)])
    assert [each.tenant for each in kept] == ["t0", *(f"t{number}" for number in range(29, 10, -1))]


def test_the_jobs_of_a_region_are_those_of_its_agents() -> None:
    batches = tuple(BatchReport(f"batch_{number:02}", 1, 0, 9, 500, 400) for number in range(MAX_BATCHES))
    parts = (
        JobsReport(2, 7, 300, batches, "the store is away"),
        JobsReport(1, 6, None, (BatchReport("batch_00a", 0, 0, 5),)),
        None,
    )
    held = {
        ("a", str(number)): HeldReport(AgentReport("a", str(number), 1, 1, 0.0, jobs=part), 0.0)
        for number, part in enumerate(parts)
    }
    found = jobs(Snapshot(held), "a", 0.0)
    assert found == JobsReport(3, 7, 300, (batches[0], parts[1].batches[0], *batches[1:-1]), "the store is away")
    assert jobs(Snapshot(held), "a", 2 * FADED_S) is None
    assert jobs(Snapshot(held), "b", 0.0) is None
