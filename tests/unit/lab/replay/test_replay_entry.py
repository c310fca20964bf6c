"""A client's choice of an entry: available ones first, then the nearest, none twice, and only the named ones if any."""

from __future__ import annotations

import pytest

from lab.replay.entry import Entry, EntryHealth, choose_entry

A1, A2, B, C = Entry("a", "http://a1"), Entry("a", "http://a2"), Entry("b", "http://b"), Entry("c", "http://c")
ENTRIES = [A1, A2, B, C]


def down() -> EntryHealth:
    health = EntryHealth()
    health.observe(False)
    health.observe(False)
    return health


@pytest.mark.parametrize(
    ("tried", "named", "fallen", "chosen"),
    [
        ([], None, [], A1),
        ([A1], None, [], A2),
        ([], None, [A1, A2], B),
        ([], None, ENTRIES, A1),
        ([A1, A2, B, C], None, [], None),
        ([A1], ["c", "b"], [], C),
        ([A1], ["c", "a"], [C], A2),
        ([A1, C], ["c"], [], None),
        ([], ["elsewhere"], [], None),
    ],
)
def test_entries_are_chosen_by_health_distance_and_history(
    tried: list[Entry], named: list[str] | None, fallen: list[Entry], chosen: Entry | None
) -> None:
    health = {entry.url: down() if entry in fallen else EntryHealth() for entry in ENTRIES}
    assert choose_entry(ENTRIES, health, frozenset(entry.url for entry in tried), named) == chosen


def test_entries_may_share_one_check() -> None:
    near, far = Entry("a", "http://near", "http://check"), Entry("b", "http://far")
    assert choose_entry([near, far], {"http://check": down()}, frozenset(), None) == far


@pytest.mark.parametrize(
    ("probes", "up"),
    [("", True), ("-", True), ("-+-", True), ("--", False), ("--+", False), ("--+-+", False), ("--++", True)],
)
def test_the_state_changes_after_two_probes_in_a_row(probes: str, up: bool) -> None:
    health = EntryHealth()
    for probe in probes:
        health.observe(probe == "+")
    assert health.up is up
