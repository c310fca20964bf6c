"""Published failover tables have few, rounded shares, and change only when they are due."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.failover_tables import (
    FailoverTableSchedule,
    _rounded,
)
from penstock.planning.plan import Arc, ArcReason, ClassPlan, FailoverTable, RegionPlan

MAX_ARCS = 4
INTERVAL_S, MISSING_INTERVAL_S, PARTS = 10.0, 2.0, 20
"""As documented, and not imported: a test fails if a tuned constant changes."""


def table(lost: str, **shares: float) -> FailoverTable:
    return FailoverTable(lost, tuple(Arc(name, share, ArcReason.FAILOVER) for name, share in shares.items()))


def shares(rounded: FailoverTable) -> dict[str, float]:
    return {arc.server: arc.share for arc in rounded.arcs}


def test_shares_are_multiples_of_one_part_and_the_largest_takes_the_rest() -> None:
    rounded = _rounded(table("a", b=0.34, c=0.33, d=0.33))
    assert rounded.lost == "a"
    assert shares(rounded) == {"b": 0.3, "c": 0.35, "d": 0.35}
    assert {arc.why for arc in rounded.arcs} == {ArcReason.FAILOVER}


def test_the_smallest_shares_are_left_out_and_those_kept_sum_to_one() -> None:
    kept = shares(_rounded(table("a", b=0.1, c=0.4, d=0.05, e=0.25, f=0.2)))
    assert list(kept) == ["b", "c", "e", "f"]
    assert len(kept) == MAX_ARCS
    assert kept == {"b": 0.1, "c": 0.45, "e": 0.25, "f": 0.2}


def test_of_equal_shares_the_first_by_name_are_kept() -> None:
    kept = shares(_rounded(table("a", f=0.2, e=0.2, d=0.2, c=0.2, b=0.2)))
    assert kept.keys() == {"b", "c", "d", "e"}


def test_a_share_below_half_a_part_has_no_arc() -> None:
    assert shares(_rounded(table("a", b=0.98, c=0.02))) == {"b": 1.0}


def test_a_single_region_takes_everything() -> None:
    only = table("a", b=1.0)
    assert _rounded(only) is only


@given(st.dictionaries(st.sampled_from("bcdefgh"), st.floats(0.01, 1.0), min_size=2))
def test_rounded_shares_are_close_and_sum_to_one(amounts: dict[str, float]) -> None:
    total = sum(amounts.values())
    rounded = shares(_rounded(table("a", **{name: amount / total for name, amount in amounts.items()})))
    assert sum(Fraction(share).limit_denominator(PARTS) for share in rounded.values()) == 1
    largest = sorted(amounts.values(), reverse=True)[:MAX_ARCS]
    for name, share in rounded.items():
        assert share == pytest.approx(amounts[name] / sum(largest), abs=MAX_ARCS / PARTS / 2)


def plans(*entries: ClassPlan) -> dict[str, RegionPlan]:
    return {"here": RegionPlan("here", 1, 1, "digest", 0.0, entries)}


def entry(*tables: FailoverTable, servers: tuple[str, ...] = ("a", "b")) -> ClassPlan:
    arcs = tuple(Arc(name, 1.0 / len(servers), ArcReason.HOME) for name in servers)
    return ClassPlan("m", "r", arcs, (), failover_tables=tables)


def tables_after(schedule: FailoverTableSchedule, given: ClassPlan, now: float) -> list[str]:
    """The lost regions of the tables of a class: none where the schedule computed them, since no problem is given."""
    (planned,) = schedule.with_tables(plans(given), [], now)["here"].classes
    return [table.lost for table in planned.failover_tables]


COMPLETE = entry(table("a", b=1.0), table("b", a=1.0))


def test_tables_are_computed_at_once_and_then_at_intervals() -> None:
    schedule = FailoverTableSchedule()
    assert tables_after(schedule, COMPLETE, 100.0) == []
    assert tables_after(schedule, COMPLETE, 100.0 + INTERVAL_S - 0.1) == ["a", "b"]
    assert tables_after(schedule, COMPLETE, 100.0 + INTERVAL_S) == []
    assert tables_after(schedule, COMPLETE, 100.0 + 2 * INTERVAL_S - 0.1) == ["a", "b"]


def test_a_missing_table_is_computed_sooner() -> None:
    schedule, partial = FailoverTableSchedule(), entry(table("a", b=1.0))
    tables_after(schedule, COMPLETE, 100.0)
    assert tables_after(schedule, partial, 100.5) == ["a"]
    assert tables_after(schedule, partial, 100.0 + MISSING_INTERVAL_S - 0.1) == ["a"]
    assert tables_after(schedule, partial, 100.0 + MISSING_INTERVAL_S) == []


def test_a_table_for_a_region_that_serves_no_more_is_removed() -> None:
    schedule = FailoverTableSchedule()
    tables_after(schedule, COMPLETE, 100.0)
    alone = msgspec.structs.replace(COMPLETE, arcs=COMPLETE.arcs[:1])
    assert tables_after(schedule, alone, 101.0) == ["a"]
    assert tables_after(schedule, COMPLETE, 100.0 + MISSING_INTERVAL_S) == ["a", "b"], "no table was missing"
    other = entry(table("b", a=1.0), servers=("a",))
    assert tables_after(schedule, other, 103.0) == []
    assert tables_after(schedule, other, 103.0 + MISSING_INTERVAL_S) == []


def test_a_class_with_one_region_and_its_table_is_complete() -> None:
    schedule, single = FailoverTableSchedule(), entry(table("a", b=1.0), servers=("a",))
    tables_after(schedule, single, 100.0)
    for at in (101.0, 100.0 + MISSING_INTERVAL_S + 1.0):
        assert tables_after(schedule, single, at) == ["a"]
