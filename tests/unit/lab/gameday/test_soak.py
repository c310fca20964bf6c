"""The verdict on a soak run: memory of each process from the first day to the last."""

from __future__ import annotations

import pytest

from lab.commands.soak_command import memory_result
from lab.gameday.gameday_run import DayResult


def day(**memory_mib: float) -> DayResult:
    return DayResult("etcd-frozen", "w", (), 10, memory_mib)


@pytest.mark.parametrize(
    ("first", "last", "passed"), [(50.0, 66.0, True), (50.0, 66.5, False), (200.0, 240.0, True), (200.0, 241.0, False)]
)
def test_a_process_may_grow_a_little(first: float, last: float, passed: bool) -> None:
    result = memory_result([day(agent=first), day(agent=999.0), day(agent=last)])
    assert (result.passed, result.requests) == (passed, 30)
