"""A page of a list of files or jobs."""

from __future__ import annotations

from typing import NamedTuple

from adapters.object_store.object_store import ObjectMissing
from regional_agent.jobs.storage.job_storage import JobStorage


class Page(NamedTuple):
    """The page of a list that a client asks for."""

    limit: int
    after: str = ""
    """Identifier of the last item of the page before; empty for the first page."""
    before: str = ""
    """Identifier of the first item of the page after; empty unless pages are read backwards."""
    ascending: bool = False
    """Whether the oldest item is first, and not the newest."""
    purpose: str = ""
    """Purpose of the files; empty for all."""


async def page_of(storage: JobStorage, folder: str, page: Page, prefix: str = "") -> tuple[list[str], bool]:
    """Return identifiers of the records in a folder, and whether there are more.

    Args:
        prefix: selects the identifiers that have it.
    """
    try:
        found = await storage.list(folder)
    except ObjectMissing:
        found = []
    names = (each.path.rpartition("/")[2].removesuffix(".json") for each in found)
    selected = sorted((name for name in names if name.startswith(prefix)), reverse=not page.ascending)
    if page.before:
        selected = [name for name in selected if name > page.before]
        return selected[-page.limit :], len(selected) > page.limit
    if page.after:
        selected = [name for name in selected if name != page.after and (name > page.after) is page.ascending]
    return selected[: page.limit], len(selected) > page.limit
