"""Upkeep of usage stores: segments past their retention are removed, and many small ones are compacted.

Main module of the process that does it for the leader: the stores on standard input, what was done on standard output.
Only objects with the name of a segment are touched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from adapters.object_store.object_store import ObjectStore, StoreUnavailable
from adapters.object_store.store_opening import MissingPackages, open_store
from control_plane.usage.segment_files import CacheTooSmall, UnusableCache
from control_plane.usage.usage_process import NICENESS, cache_folder
from penstock.ledger.segment_names import SegmentName, parse_segment_name
from penstock.policy.policy import Policy

COMPACTED_DAYS: Final = 35
"""Days back from today whose segments are compacted: late segments come from agents that were cut off for long."""

_PROBLEMS: Final = (
    StoreUnavailable,
    MissingPackages,
    CacheTooSmall,
    UnusableCache,
    OSError,
    # Errors of pyarrow for damaged segments derive from these, as do those of msgspec for their metadata.
    ValueError,
    TypeError,
    LookupError,
    NotImplementedError,
)
"""Errors of one store, which say nothing about the others."""


class StoreToKeep(msgspec.Struct, frozen=True):
    """One usage store of the policy."""

    name: str
    url: str
    retention_days: int | None = None


def stores_to_keep(policy: Policy) -> tuple[StoreToKeep, ...]:
    """Return the usage stores of a policy."""
    return tuple(StoreToKeep(store.name, store.url, store.retention_days) for store in policy.usage_stores or ())


class UpkeepRequest(msgspec.Struct, frozen=True):
    """What to do."""

    stores: tuple[StoreToKeep, ...]
    now_ms: int
    """Unix time (ms)."""


class UpkeepReport(msgspec.Struct, frozen=True):
    """What was done."""

    removed: int = 0
    """Segments past their retention that were removed."""
    compacted: int = 0
    """Segments that others replaced."""
    problems: tuple[str, ...] = ()


def expired(names: Iterable[SegmentName], today: date, retention_days: int | None) -> list[SegmentName]:
    """Return the segments whose day is more than `retention_days` before today; none without a retention."""
    if retention_days is None:
        return []
    first_kept = today - timedelta(days=retention_days)
    return [name for name in names if name.day < first_kept]


def keep(request: UpkeepRequest, cache: Path) -> UpkeepReport:
    """Remove and compact segments in all stores. A store with a problem does not hold up the others."""
    removed, compacted, problems = 0, 0, []
    for each in request.stores:
        try:
            gone, replaced = _keep_store(open_store(each.url), each, request, cache)
            removed, compacted = removed + gone, compacted + replaced
        except _PROBLEMS as error:
            problems.append(f"the store {each.name}: {error}")
    return UpkeepReport(removed, compacted, tuple(problems))


def _keep_store(store: ObjectStore, settings: StoreToKeep, request: UpkeepRequest, cache: Path) -> tuple[int, int]:
    from control_plane.usage.compaction import MIN_SEGMENTS, compact

    today = datetime.fromtimestamp(request.now_ms / 1000, UTC).date()
    every = [name for each in store.list("") if (name := parse_segment_name(each.path)) is not None]
    gone = expired(every, today, settings.retention_days)
    for name in gone:
        store.delete(str(name))
    groups: dict[tuple[date, str], list[SegmentName]] = {}
    for name in every:
        if name.day >= today - timedelta(days=COMPACTED_DAYS):
            groups.setdefault((name.day, name.region), []).append(name)
    for name in gone:
        groups.pop((name.day, name.region), None)
    many = [names[0] for names in groups.values() if len(names) >= MIN_SEGMENTS]
    replaced = sum(compact(store, name, cache, request.now_ms) for name in many)
    return len(gone), replaced


def main(replies: BinaryIO) -> None:
    """Do what standard input requests."""
    os.nice(NICENESS)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=UpkeepRequest)
    try:
        report = keep(request, cache_folder())
    except ImportError as error:
        report = UpkeepReport(problems=(str(MissingPackages(error.name or "pyarrow")),))
    replies.write(msgspec.json.encode(report))
