"""A page of a list of files or jobs."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from penstock.jobs.store_paths import is_file_or_job
from regional_agent.jobs.storage.job_storage import JobStorage

FEW: Final = 1000
"""Number of records up to which all are read: a bucket returns them for one request."""

_FIRST_MS: Final = 60 * 1000
_GROWTH: Final = 256
"""Times (ms) of identifiers before the last one of a page that are read first, and how much more then."""

_SUFFIX: Final = ".json"
_TIME: Final = re.compile(r"[0-9a-f]{12}")


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


async def page_of(storage: JobStorage, folder: str, page: Page, prefix: str) -> tuple[list[str], bool]:
    """Return the identifiers with a prefix that are on a page of the records in a folder, and whether more follow."""
    chosen = _oldest if page.ascending or page.before else _newest
    names = await storage.choose(folder, lambda names_after: chosen(names_after, page, prefix))
    return names[: page.limit], len(names) > page.limit


def _oldest(names_after: Callable[[str], Iterable[str]], page: Page, prefix: str) -> list[str]:
    """Return the first identifiers after that of the page, one more than its limit; of a page before another one, in
    the order of the list."""
    last = page.before or page.after
    names = _identifiers(names_after(last + _SUFFIX if is_file_or_job(last) else prefix))
    found = (name for name in takewhile(lambda name: name.startswith(prefix), names) if name > last)
    chosen = list(islice(found, page.limit + 1))
    if page.before and not page.ascending:
        # The page has those that are next to `before`; the one beyond its limit comes last.
        return [*reversed(chosen[: page.limit]), *chosen[page.limit :]]
    return chosen


def _newest(names_after: Callable[[str], Iterable[str]], page: Page, prefix: str) -> list[str]:
    """Return the last identifiers before that of the page, from the end, one more than its limit.

    A bucket lists names from the first one alone, so that only those of some time before the page are read, and of a
    longer time if they are too few.
    """

    def before_page(names: Iterable[str]) -> Iterable[str]:
        return takewhile(
            lambda name: name.startswith(prefix) and (not page.after or name < page.after), _identifiers(names)
        )

    everything = names_after(prefix)
    few = list(islice(before_page(everything), None if isinstance(everything, Sequence) else FEW))
    if len(few) >= FEW and not isinstance(everything, Sequence):
        for start in _starts(page.after.removeprefix(prefix)):
            found = before_page(names_after(prefix + start))
            few = list(deque(found, maxlen=page.limit + 1))
            if len(few) > page.limit:
                break
    return few[::-1][: page.limit + 1]


def _starts(after: str) -> Iterable[str]:
    """Return beginnings of identifiers, without their prefix: each is further before `after`, or before the present
    time, and the last one is the first of all."""
    time_ms, before_ms = int(after[:12], 16) if _TIME.match(after) else int(time.time() * 1000), _FIRST_MS
    while before_ms < time_ms:
        yield f"{time_ms - before_ms:012x}"
        before_ms *= _GROWTH
    yield ""


def _identifiers(names: Iterable[str]) -> Iterable[str]:
    return (name.removesuffix(_SUFFIX) for name in names)
