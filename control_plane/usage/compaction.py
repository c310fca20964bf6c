"""Compaction: one segment in place of the many small ones of a day and region.

A compacted segment lists what it replaces in its own metadata. Readers skip replaced segments, so that nothing is
counted twice if a process dies before it has removed them, or if an agent puts one of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from adapters.object_store.object_store import ObjectStore
from control_plane.usage.segment_files import list_segments, local_files
from penstock.ledger.segment_names import COMPACTED, SegmentName

MIN_SEGMENTS: Final = 8
"""Number of segments of a day and region from which they are compacted."""

MAX_ROWS_OF_GROUP: Final = 1 << 20

_METADATA: Final = b"penstock.replaces"

Replaced = dict[str, list[tuple[int, int]]]
"""Ranges of numbers, both ends included, by `<agent>-<epoch>`."""


def without_replaced(segments: Iterable[tuple[SegmentName, Path]]) -> list[Path]:
    """Return the files of segments that no other segment replaced.

    If two leaders compacted the same segments at once, the compacted segment that replaces fewer of them is left out.
    """
    every = list(segments)
    by_size = [(replaced_by(path), name, path) for name, path in every if name.is_compacted]
    by_size.sort(key=lambda each: (_number_replaced(each[0]), each[1]))
    replaced: dict[tuple[str, str], Replaced] = {}
    kept: set[Path] = set()
    for own, name, path in reversed(by_size):
        known = replaced.setdefault((name.day.isoformat(), name.region), {})
        if any(_overlap(ranges, known.get(source, ())) for source, ranges in own.items()):
            continue
        kept.add(path)
        for source, ranges in own.items():
            known.setdefault(source, []).extend(ranges)
    return [
        path
        for name, path in every
        if (path in kept if name.is_compacted else True) and not _is_replaced(name, replaced)
    ]


def _number_replaced(replaced: Replaced) -> int:
    return sum(last - first + 1 for ranges in replaced.values() for first, last in ranges)


def _is_covered(path: Path, kept: Iterable[Path]) -> bool:
    """Whether one of the segments in force replaces all that a compacted segment replaced."""
    own = replaced_by(path)
    return any(
        all(
            any(begin <= first and last <= end for begin, end in other.get(source, ()))
            for source, ranges in own.items()
            for first, last in ranges
        )
        for other in map(replaced_by, kept)
    )


def _overlap(some: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> bool:
    known = list(others)
    return any(first <= end and begin <= last for first, last in some for begin, end in known)


def replaced_by(path: Path) -> Replaced:
    """Return what a compacted segment replaces."""
    metadata: Mapping[bytes, bytes] = pq.read_metadata(path).metadata or {}
    return msgspec.json.decode(metadata.get(_METADATA, b"{}"), type=Replaced)


def _is_replaced(name: SegmentName, replaced: Mapping[tuple[str, str], Replaced]) -> bool:
    ranges = replaced.get((name.day.isoformat(), name.region), {}).get(f"{name.agent}-{name.epoch}", ())
    return any(first <= name.number <= last for first, last in ranges)


def absent(store: ObjectStore, names: Iterable[SegmentName], cache: Path) -> list[SegmentName]:
    """Return the segments that the store has neither itself nor as a part of another one.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    wanted = list(names)
    for day in {name.day for name in wanted}:
        listed = list_segments(store, day, day)
        found = {each.name for each in listed}
        wanted = [name for name in wanted if name not in found]
        regions = {name.region for name in wanted if name.day == day}
        compacted = [each for each in listed if each.name.is_compacted and each.name.region in regions]
        for each, path in zip(compacted, local_files(store, compacted, cache), strict=True):
            replaced = {(day.isoformat(), each.name.region): replaced_by(path)}
            wanted = [name for name in wanted if not _is_replaced(name, replaced)]
    return wanted


def compact(store: ObjectStore, day: SegmentName, cache: Path, now_ms: int) -> int:
    """Replace the segments of a day and region by one; returns how many were replaced.

    Args:
        day: a name with the day and region.
        now_ms: Unix time (ms), for the name of the new segment.

    Raises:
        StoreUnavailable: nothing is lost; the next compaction continues.
    """
    listed = [each for each in list_segments(store, day.day, day.day) if each.name.region == day.region]
    paths = local_files(store, listed, cache)
    kept = set(without_replaced(zip((each.name for each in listed), paths, strict=True)))
    current = [(each.name, path) for each, path in zip(listed, paths, strict=True) if path in kept]
    if len(current) >= MIN_SEGMENTS:
        replaces: Replaced = {}
        for name, path in current:
            if name.is_compacted:
                for source, ranges in replaced_by(path).items():
                    replaces.setdefault(source, []).extend(ranges)
            replaces.setdefault(f"{name.agent}-{name.epoch}", []).append((name.number, name.number))
        # In order of their names, so that the rows of the new segment do not depend on the listing.
        tables = [pq.read_table(path, partitioning=None) for name, path in sorted(current)]
        merged = _concatenated(tables).sort_by([("tenant", "ascending"), ("at_ms", "ascending")])
        ranges_of = {source: _merged(ranges) for source, ranges in replaces.items()}
        merged = merged.replace_schema_metadata({_METADATA: msgspec.json.encode(ranges_of)})
        out = BytesIO()
        pq.write_table(merged, out, compression="zstd", row_group_size=MAX_ROWS_OF_GROUP)
        store.put(str(SegmentName(day.day, day.region, COMPACTED, now_ms, 1)), out.getvalue())
    else:
        current = []
    # Those that an earlier compaction replaced and did not remove, and those that this one replaced. A compacted
    # segment that is only partly replaced stays, for operators.
    replaced = [(each.name, path) for each, path in zip(listed, paths, strict=True) if path not in kept]
    whole = [path for name, path in replaced if not name.is_compacted or _is_covered(path, kept)]
    gone = [name for name, path in replaced if path in whole]
    for name in [*gone, *(name for name, _ in current)]:
        store.delete(str(name))
    return len(current)


def _concatenated(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all tables; those of earlier releases lack columns, which have no value in their rows."""
    found = pa.concat_tables(tables, promote_options="default")
    return pa.Table.from_arrays(found.columns, schema=pa.schema([field.with_nullable(True) for field in found.schema]))


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
