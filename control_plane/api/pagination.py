"""Pagination. A cursor names the last entry returned, so it stays valid while entries are added and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest, nsmallest
from typing import Annotated, TypeVar

from fastapi import Query

from control_plane.page import Page

DEFAULT_LIMIT = 50
MAX_LIMIT = 500

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of entries in the page.")]
"""Type of the parameter `limit` of a route. Its default is DEFAULT_LIMIT."""
Cursor = Annotated[
    str | None,
    Query(
        max_length=2048,
        pattern=r"^([0-9a-f]{2})+$",
        description="`next_cursor` of the previous page. Default: the first page.",
    ),
]

T = TypeVar("T")


def paginate(
    items: Iterable[T], name: Callable[[T], str], cursor: str | None, limit: int, *, newest_first: bool = False
) -> Page[T]:
    """Return the page that follows `cursor`.

    Args:
        items: the whole list, in any order.
        name: returns the sort key of an entry: unique and not empty.
        cursor: from the previous page; None for the first page.
        limit: maximum number of entries.
        newest_first: sort in descending order.
    """
    if cursor is not None:
        last = bytes.fromhex(cursor)
        items = (item for item in items if (name(item).encode() < last if newest_first else name(item).encode() > last))
    # Faster than to sort lists of tens of thousands of entries for each page.
    first = nlargest if newest_first else nsmallest
    found = first(limit + 1, items, key=lambda item: name(item).encode())
    page = found[:limit]
    return Page(tuple(page), to_cursor(name(page[-1])) if len(found) > limit else None)


def to_cursor(name: str) -> str:
    """Return the cursor of the page that follows the entry with this sort key."""
    return name.encode().hex()
