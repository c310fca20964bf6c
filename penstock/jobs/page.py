"""A page of a list of files or jobs."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A page of a list."""

    limit: int
    after: str = ""
    """Identifier of the last item of the page before; empty for the first page."""
    before: str = ""
    """Identifier of the first item of the page after; empty unless pages are read backwards."""
    ascending: bool = False
    """Whether the oldest item is first, and not the newest."""
    purpose: str = ""
    """Purpose of the files; empty for all."""
