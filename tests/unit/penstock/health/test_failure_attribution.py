"""Failures count against endpoints, unless the requests of one tenant alone are the cause."""

import pytest

from penstock.health.failure_attribution import (
    TenantFailures,
    UndecidedBreaks,
)

MAX_ENDPOINTS, MAX_TENANTS, MAX_UNDECIDED = 1_024, 16, 256
JUDGED_AFTER_S, WINDOW_S = 1.0, 30.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_failures_of_a_single_tenant_count() -> None:
    failures = TenantFailures()
    for now in range(20):
        for name in ("gpu-0", "gpu-1", "gpu-2"):
            failures.served("only", name, float(now))
        assert failures.failed("only", f"gpu-{now % 3}", float(now))


def test_failures_of_one_tenant_at_two_endpoints_that_serve_others_do_not_count() -> None:
    failures = TenantFailures()
    assert failures.failed("poison", "gpu-1", 0.0)
    failures.served("other", "gpu-1", 0.5)
    assert failures.failed("poison", "gpu-1", 1.0), "one endpoint alone may lack something for this tenant"
    assert failures.failed("poison", "gpu-2", 1.0)
    failures.served("other", "gpu-2", 1.5)
    assert not failures.failed("poison", "gpu-2", 2.0)
    assert not failures.failed("poison", "gpu-3", 2.0), "nor at further endpoints"
    assert failures.failed("other", "gpu-3", 2.5), "the failures of other tenants count"


def test_an_endpoint_that_fails_several_tenants_is_the_cause() -> None:
    failures = TenantFailures()
    for name in ("gpu-1", "gpu-2"):
        failures.failed("a", name, 0.0)
        failures.failed("b", name, 0.1)
        failures.served("c", name, 0.2)
    assert failures.failed("a", "gpu-1", 1.0)
    assert failures.failed("b", "gpu-2", 1.0)


def test_only_requests_that_were_served_after_the_first_failure_are_evidence() -> None:
    failures = TenantFailures()
    for name in ("gpu-1", "gpu-2"):
        failures.failed("a", name, 0.0)
        failures.served("b", name, 1.0)
    assert not failures.failed("a", "gpu-1", 2.0)
    assert not failures.failed("a", "gpu-1", 1.0 + WINDOW_S - 1.0)
    assert failures.failed("a", "gpu-1", 1.0 + WINDOW_S + 1.0), "no other tenant was served since"


def test_a_failure_long_ago_is_not_the_first_one() -> None:
    failures = TenantFailures()
    for now in (0.0, WINDOW_S + 50.0):
        for name in ("gpu-1", "gpu-2"):
            failures.served("b", name, now - 1.0)
            assert failures.failed("a", name, now)
    assert not failures.is_cause("a", WINDOW_S + 50.0), "the other tenant was served before these failures"


def test_requests_that_are_served_matter_for_half_a_minute_after_a_failure() -> None:
    failures = TenantFailures()
    assert failures.until < 0.0
    failures.failed("a", "gpu-1", 100.0)
    assert failures.until == 130.0


def test_a_tenant_that_is_served_again_does_not_hide_the_others() -> None:
    failures = TenantFailures()
    for name in ("gpu-1", "gpu-2"):
        failures.failed("a", name, 0.0)
        failures.served("b", name, 1.0)
        failures.served("a", name, 2.0)
        failures.served("a", name, 3.0)
    assert failures.is_cause("a", 4.0)


def test_memory_is_bounded() -> None:
    failures = TenantFailures()
    for number in range(MAX_ENDPOINTS + 10):
        failures.failed("a", f"gpu-{number}", 0.0)
    for number in range(2 * MAX_TENANTS):
        failures.failed(f"tenant-{number}", "gpu-0", 0.0)
    assert len(failures._endpoints) == MAX_ENDPOINTS
    assert len(failures._endpoints["gpu-0"].by_tenant) == MAX_TENANTS
    failures.failed("a", "another", 2 * WINDOW_S)
    assert list(failures._endpoints) == ["another"]


def test_a_request_that_breaks_two_endpoints_counts_against_neither() -> None:
    breaks: UndecidedBreaks[str] = UndecidedBreaks()
    request = object()
    assert breaks.broke(request, "gpu-1", 0.0) == []
    assert breaks.broke(request, "gpu-2", 0.5) == ["gpu-1", "gpu-2"]
    assert breaks.decided(100.0) == []


def test_a_request_that_breaks_one_endpoint_counts_against_it_after_a_while() -> None:
    breaks: UndecidedBreaks[str] = UndecidedBreaks()
    breaks.broke(object(), "gpu-1", 0.0)
    breaks.broke(object(), "gpu-2", 0.5)
    assert breaks.decided(JUDGED_AFTER_S - 0.1) == []
    assert breaks.decided(JUDGED_AFTER_S) == ["gpu-1"]
    assert breaks.decided(JUDGED_AFTER_S) == []
    assert breaks.decided(JUDGED_AFTER_S + 0.5) == ["gpu-2"]


def test_a_request_that_is_served_elsewhere_counts_against_the_endpoint_at_once() -> None:
    breaks: UndecidedBreaks[str] = UndecidedBreaks()
    request = object()
    breaks.broke(request, "gpu-1", 0.0)
    breaks.broke(object(), "gpu-2", 0.0)
    assert breaks.began(request) == ["gpu-1"]
    assert breaks.began(request) == []
    assert breaks.decided(JUDGED_AFTER_S) == ["gpu-2"]


@pytest.mark.parametrize("excess", [0, 3])
def test_undecided_breaks_are_bounded(excess: int) -> None:
    breaks: UndecidedBreaks[int] = UndecidedBreaks()
    for number in range(MAX_UNDECIDED + excess):
        breaks.broke(object(), number, 0.0)
    assert breaks.decided(0.0) == list(range(excess))
