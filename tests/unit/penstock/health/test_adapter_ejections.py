from random import Random

import pytest

from penstock.health.adapter_ejections import MAX_ADAPTERS, AdapterEjections
from penstock.health.outlier_ejection import AttemptOutcome, EjectionRules, EndedAttempt

MANY = 2
"""As documented, and not imported: a test fails if a tuned constant changes."""

RULES = EjectionRules(base_s=10.0)
FAILED, SERVED = AttemptOutcome.SERVER_ERROR, AttemptOutcome.SERVED


def end(
    ejections: AdapterEjections, name: str, outcome: AttemptOutcome, now: float, count: int = 1, *, may: bool = True
) -> list[bool]:
    ended = EndedAttempt(outcome, now)
    return [ejections.ended(name, ended, now, RULES, Random(1), may_eject=may) for _ in range(count)]


def test_failures_in_a_row_eject_an_adapter_until_one_of_its_requests_is_served() -> None:
    ejections = AdapterEjections()
    assert end(ejections, "a", FAILED, 1.0, 3) == [False, False, True]
    assert (ejections.out(1.0), ejections.is_out("b", 1.0)) == (["a"], False)
    assert ejections.out(12.0) == [], "its time is over"
    assert end(ejections, "a", FAILED, 12.0) == [True], "its next request decides"
    assert end(ejections, "a", SERVED, 40.0) == [False]
    assert ejections.out(40.0) == []


def test_adapters_without_failures_take_no_memory() -> None:
    ejections = AdapterEjections()
    end(ejections, "a", SERVED, 1.0)
    assert "a" not in ejections
    for number in range(2 * MAX_ADAPTERS):
        end(ejections, f"a{number}", FAILED, 1.0)
    assert sum(f"a{number}" in ejections for number in range(2 * MAX_ADAPTERS)) == MAX_ADAPTERS


def test_an_adapter_stays_where_no_other_endpoint_has_room() -> None:
    ejections = AdapterEjections()
    assert end(ejections, "a", FAILED, 1.0, 5, may=False) == [False] * 5
    assert ejections.out(1.0) == []


@pytest.mark.parametrize(
    ("outcome", "charges"),
    [
        (AttemptOutcome.SERVER_ERROR, True),
        (AttemptOutcome.GATEWAY_ERROR, True),
        (AttemptOutcome.BROKEN_OFF, True),
        (AttemptOutcome.UNREACHABLE, False),
        (AttemptOutcome.STALLED, False),
        (AttemptOutcome.CREDENTIAL_REJECTED, False),
        (AttemptOutcome.INCONCLUSIVE, False),
    ],
)
def test_what_concerns_the_server_counts_against_the_endpoint(outcome: AttemptOutcome, charges: bool) -> None:
    ejections = AdapterEjections()
    assert ejections.charges("a", outcome, 1.0) is charges
    for number in range(MANY):
        end(ejections, f"other-{number}", FAILED, 1.0, 3)
    assert not ejections.charges("a", outcome, 1.0), "many adapters fail, so the engine is the cause"
    assert ejections.charges("other-0", outcome, 1.0) is charges
