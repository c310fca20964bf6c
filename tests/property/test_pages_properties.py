"""Pages, put together, are the list in order, whatever comes and goes in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.api.pages import from_cursor, paged, to_cursor
from control_plane.problems import Problem

names = st.text(min_size=1, max_size=8)


@given(st.sets(names, max_size=20), st.integers(1, 7))
def test_pages_put_together_are_the_list(items: set[str], limit: int) -> None:
    seen: list[str] = []
    cursor = None
    while True:
        page = paged(items, str, cursor, limit)
        assert len(page.items) <= limit
        seen += page.items
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert seen == sorted(items)


@given(st.sets(names, min_size=1, max_size=20), st.sets(names, max_size=10), st.data())
def test_what_stays_is_seen_once_while_others_come_and_go(items: set[str], new: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(items))))
    first = paged(items, str, None, 3)
    if first.next_cursor is None:
        return
    later = paged(items - gone | new, str, first.next_cursor, 100)
    seen = [*first.items, *later.items]
    for name in items - gone:
        assert seen.count(name) == 1


@given(names)
def test_a_cursor_comes_back(name: str) -> None:
    assert from_cursor(to_cursor(name)) == name


@given(st.text(max_size=12))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    try:
        name = from_cursor(text)
    except Problem:
        return
    assert to_cursor(name) == text


@pytest.mark.parametrize("text", ["", "=", "a", "YQ==", "\u00e9", "/w", "_w"])
def test_these_are_none(text: str) -> None:
    with pytest.raises(Problem):
        from_cursor(text)
