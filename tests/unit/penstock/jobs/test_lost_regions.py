"""Which regions are lost, by their marks in the job store."""

from __future__ import annotations

from penstock.jobs.claims import LOST_S, RegionMarks


def test_a_region_is_lost_while_its_mark_stays_the_same() -> None:
    marks = RegionMarks()
    assert not marks.is_lost("a", b"1", 1000.0), "how long the mark is there is unknown"
    assert not marks.is_lost("a", b"1", 1000.0 + LOST_S - 1.0)
    assert marks.is_lost("a", b"1", 1000.0 + LOST_S)
    assert not marks.is_lost("a", b"2", 1000.0 + LOST_S + 1.0), "it is back"
    assert not marks.is_lost("b", b"", 1000.0 + LOST_S)
    assert marks.is_lost("b", b"", 1000.0 + 2 * LOST_S), "it has never written"
