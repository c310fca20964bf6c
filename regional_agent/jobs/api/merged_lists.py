"""Lists of files and jobs over all stores that an agent may read: its own, and those of regions whose jobs it finishes.

Identifiers are unique, and their order is that of a list in each store, so that one cursor serves all stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from adapters.object_store.object_store import StoreUnavailable
from regional_agent.jobs.storage.job_storage import StoreSilent, UnreadableRecord
from regional_agent.jobs.storage.job_stores_in_use import OpenStore
from regional_agent.jobs.storage.page import Page, page_of

OTHER_TIMEOUT_S: Final = 5.0
"""Maximum time (s) for which a list waits for a read of a store other than that of the region."""

SHOWN_AT_ONCE: Final = 8
"""Number of items of a list that are read at a time."""

log = structlog.get_logger()

_Read = TypeVar("_Read")


class ListedStore(NamedTuple):
    """What one store contributes to a list."""

    store: OpenStore
    folder: str
    """Folder of the records."""
    show: Callable[[str], Awaitable[dict[str, Any] | None]]
    """Returns what the list shows of an identifier; None for what was deleted or is not asked for."""
    prefix: str
    """Selects the identifiers that have it."""


class MergedList:
    """A page of a list over several stores."""

    def __init__(self, stores: Sequence[ListedStore]) -> None:
        """Prepare to read `stores`; a page needs the first one, and not the others."""
        self._own, self._stores = stores[0], [*stores]
        self._missing: list[OpenStore] = []
        self.items: list[dict[str, Any]] = []
        self.more = False
        """Whether there are further items."""

    async def read(self, page: Page) -> None:
        """Read a page. Raises StoreUnavailable."""
        while True:
            names, self.more = await self._names(page)
            for start in range(0, len(names), SHOWN_AT_ONCE):
                some = names[start : start + SHOWN_AT_ONCE]
                shown = (self._read(listed, partial(listed.show, name)) for name, listed in some)
                self.items += [item for item in await asyncio.gather(*shown) if item is not None]
            # With a purpose, few of the names may be shown: one more says whether there are further ones.
            enough = page.limit + 1 if page.purpose else page.limit
            if not self.more or page.before or len(self.items) >= enough:
                break
            page = page._replace(after=names[-1][0])
        self.more |= len(self.items) > page.limit
        del self.items[page.limit :]

    async def _names(self, page: Page) -> tuple[list[tuple[str, ListedStore]], bool]:
        """Return the identifiers of a page with their stores, and whether there are more."""
        found: dict[str, ListedStore] = {}
        more = False
        stores = [*self._stores]
        pages = (partial(page_of, each.store.files.storage, each.folder, page, each.prefix) for each in stores)
        read = await asyncio.gather(*map(self._read, stores, pages))
        for each, found_page in zip(stores, read, strict=True):
            names, has_more = found_page or ([], False)
            more |= has_more
            for name in names:
                found.setdefault(name, each)
        ordered = sorted(found, reverse=not page.ascending)
        chosen = ordered[-page.limit :] if page.before else ordered[: page.limit]
        return [(name, found[name]) for name in chosen], more or len(ordered) > page.limit

    async def _read(self, listed: ListedStore, read: Callable[[], Awaitable[_Read]]) -> _Read | None:
        """Return what is read; None for a record that cannot be decoded, and for another store that cannot be read,
        which is not read again."""
        is_own = listed is self._own
        if not is_own and listed not in self._stores:
            return None
        try:
            async with asyncio.timeout(None if is_own else OTHER_TIMEOUT_S):
                return await read()
        except UnreadableRecord as error:
            log.warning("a list lacks a record that cannot be read", error=str(error))
            return None
        except (StoreUnavailable, TimeoutError) as error:
            if is_own:
                raise
            if listed not in self._stores:
                return None
            if not isinstance(error, StoreSilent):
                log.warning("the job store failed", store=listed.store.document.name, error=str(error) or "timeout")
            self._stores.remove(listed)
            self._missing.append(listed.store)
            return None

    def missing(self) -> dict[str, Any]:
        """Return the field of a list that lacks a store; no field if it is complete."""
        if not self._missing:
            return {}
        message = "the store cannot be read now: what it has is not in this list"
        stores = [
            {"name": store.document.name, "regions": sorted(store.document.covers or ()), "message": message}
            for store in self._missing
        ]
        return {"missing_stores": stores}
