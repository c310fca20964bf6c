"""Since when the marks of regions, and the ends of claims, are the same."""

from __future__ import annotations

from math import inf

from penstock.jobs.claims import MAX_TRACKED, MAX_UNSEEN_S, StoreLosses, UnchangedValues, is_lost

LEASE_S, LOST_S = 30.0, 120.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_the_time_counts_from_the_first_reading_of_a_value() -> None:
    marks = UnchangedValues()
    assert marks.unchanged_s("a", b"1", 1000.0) == 0.0, "how long the mark is there is unknown"
    assert marks.unchanged_s("a", b"1", 1010.0) == 10.0
    assert marks.unchanged_s("a", b"2", 1020.0) == 0.0, "it has changed"
    assert marks.unchanged_s("b", b"", 1020.0) == 0.0
    assert marks.unchanged_s("b", b"", 1030.0) == 10.0, "it has never been written"
    assert marks.unchanged_s("a", b"2", 1030.0) == 10.0
    assert marks.unchanged_s("a", b"2", 1630.0) == 10.0 + MAX_UNSEEN_S == 50.0, "while the store was lost"
    assert marks.unchanged_s("a", b"2", 1640.0) == 60.0


def test_a_loss_of_the_store_in_which_claims_ended_is_followed_by_time_to_renew_them() -> None:
    losses = StoreLosses()
    assert losses.usable_s("a", 1000.0) == inf
    losses.failed("a", 1000.0)
    assert losses.usable_s("a", 1000.0 + LEASE_S / 2) == inf, "no claim has ended"
    losses.failed("a", 1100.0)
    losses.failed("a", 1700.0)
    assert losses.usable_s("b", 1710.0) == inf
    assert [losses.usable_s("a", 1710.0), losses.usable_s("a", 1720.0)] == [0.0, 10.0]


def test_a_region_is_lost_once_its_mark_has_been_the_same_for_long() -> None:
    assert not is_lost(LOST_S - 1.0)
    assert is_lost(LOST_S)


def test_values_use_bounded_memory() -> None:
    claims = UnchangedValues()
    for number in range(MAX_TRACKED + 2):
        claims.unchanged_s(f"batch_{number}", 0.0, 1000.0)
    assert len(claims._seen) <= MAX_TRACKED + 1
    assert claims.unchanged_s(f"batch_{MAX_TRACKED + 1}", 0.0, 1010.0) == 10.0
