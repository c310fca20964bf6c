"""The pages together equal the list in order, whatever is added or removed between requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from control_plane.api.pagination import paginate

names = st.text(min_size=1, max_size=8)


@given(st.sets(names, max_size=20), st.integers(1, 7))
def test_the_pages_together_are_the_list(items: set[str], limit: int) -> None:
    seen: list[str] = []
    cursor = None
    while True:
        page = paginate(items, str, cursor, limit)
        assert len(page.items) <= limit
        seen += page.items
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert seen == sorted(items)


@given(st.sets(names, min_size=1, max_size=20), st.sets(names, max_size=10), st.data())
def test_items_that_stay_are_listed_once(items: set[str], new: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(items))))
    first = paginate(items, str, None, 3)
    if first.next_cursor is None:
        return
    later = paginate(items - gone | new, str, first.next_cursor, 100)
    seen = [*first.items, *later.items]
    for name in items - gone:
        assert seen.count(name) == 1


@given(st.sets(names, max_size=9), st.binary(min_size=1, max_size=9).map(bytes.hex), st.booleans())
def test_any_cursor_is_a_position_in_the_list(items: set[str], cursor: str, newest_first: bool) -> None:
    page = paginate(items, str, cursor, 100, newest_first=newest_first)
    rest = {item for item in items if (item.encode() < bytes.fromhex(cursor)) is newest_first}
    assert set(page.items) | {bytes.fromhex(cursor).decode("utf-8", "replace")} >= rest
    assert page.next_cursor is None
