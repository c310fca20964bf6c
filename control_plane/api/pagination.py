"""Lists in pages: a cursor that stays right while entries come and go, because it names the last one seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Generic, TypeVar

import msgspec
from fastapi import Query

USUAL_LIMIT = 50
MAX_LIMIT = 500

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most entries in the page.")]
"""Give it USUAL_LIMIT as its default."""
Cursor = Annotated[
    str | None,
    Query(
        max_length=2048,
        pattern=r"^([0-9a-f]{2})+$",
        description="`next_cursor` of the page before; without one, the list begins.",
    ),
]

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some entries of a list."""

    items: tuple[T, ...]
    next_cursor: str | None
    """Give it as `cursor` to have the entries after these; null: there are none."""


def paged(
    items: Iterable[T], name: Callable[[T], str], cursor: str | None, limit: int, *, newest_first: bool = False
) -> Page[T]:
    """The first `limit` entries of those after `cursor`.

    Args:
        items: the whole list, in any order.
        name: of an entry: unique, not empty, and what the order goes by.
        cursor: from the page before; None for the first page.
        limit: most entries.
        newest_first: from the last name to the first.
    """
    left = sorted(items, key=lambda item: name(item).encode(), reverse=newest_first)
    if cursor is not None:
        seen = bytes.fromhex(cursor)
        left = [item for item in left if (name(item).encode() < seen if newest_first else name(item).encode() > seen)]
    page = left[:limit]
    return Page(tuple(page), to_cursor(name(page[-1])) if len(left) > limit else None)


def to_cursor(name: str) -> str:
    """A cursor for what follows the entry of this name: any text of hexadecimal digits is one for some name."""
    return name.encode().hex()
