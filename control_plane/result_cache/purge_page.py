"""A page of purges of the result cache, as the API returns it and the CLI reads it."""

from __future__ import annotations

import msgspec

from penstock.result_cache.cache_purges import CachePurge


class CachePurgePage(msgspec.Struct, frozen=True):
    """A page of purges."""

    items: tuple[CachePurge, ...]
    next_cursor: str | None
    """Value of `cursor` that returns the next page; null on the last page."""
