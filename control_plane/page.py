"""A page of a list, as routes return it and commands read it."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list."""

    items: tuple[T, ...]
    next_cursor: str | None
    """`cursor` of the next page; null: this is the last page."""
