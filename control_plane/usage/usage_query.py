"""Sums of usage over segments, by DuckDB. A segment that another one replaced is not counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from adapters.object_store.object_store import StoreUnavailable
from adapters.object_store.store_opening import MissingPackages, open_store
from control_plane.usage.compaction import absent, without_replaced
from control_plane.usage.idle_query import capacity_rows
from control_plane.usage.segment_files import CacheTooSmall, UnusableCache, list_segments, local_files
from control_plane.usage.segment_query import columns_of, label, run
from control_plane.usage.usage_request import Dimension, UsageAnswer, UsageRequest, UsageRow, sum_of
from penstock.accounts.outcome_rules import Outcome
from penstock.ledger.ledger_record import RecordKind
from penstock.ledger.segment_names import SegmentName

MAX_ROWS: Final = 100_000
"""Maximum number of groups of an answer."""

_SUCCESSES: Final = f"('{Outcome.OK.value}', '{Outcome.CACHED.value}')"

_SUMS: Final = f"""
    count(*) FILTER (kind = {RecordKind.REQUEST:d}) AS requests,
    count(*) FILTER (kind = {RecordKind.UNKNOWN_END:d}) AS unknown_requests,
    count(*) FILTER (kind = {RecordKind.REQUEST:d} AND outcome IN {_SUCCESSES}) AS successes,
    sum(input_tokens) FILTER (NOT is_overhead) AS input_tokens,
    sum(cached_tokens) FILTER (NOT is_overhead) AS cached_tokens,
    sum(output_tokens) FILTER (NOT is_overhead) AS output_tokens,
    sum(input_tokens + output_tokens) FILTER (is_overhead) AS overhead_tokens,
    count(*) FILTER (is_estimated AND kind = {RecordKind.REQUEST:d}) AS estimated_requests,
    sum(gpu_s) AS gpu_s,
    sum(gpu_s) FILTER (is_overhead) AS overhead_gpu_s,
    sum(egress_bytes) AS egress_bytes,
    sum(price) AS price,
    sum(gpu_cost) AS gpu_cost,
    count(*) FILTER (objective <> '') AS objective_requests,
    count(*) FILTER (objective <> '' AND is_within) AS within_objective,
    sum(burst_s) AS burst_s,
    sum(burst_cost) AS burst_cost"""


class TooManyRows(Exception):
    """The answer would have more than MAX_ROWS rows."""


def answer(request: UsageRequest, cache: Path) -> UsageAnswer:
    """Answer a question from all stores. What a store lacks is in `missing`.

    Args:
        cache: folder for segments of buckets.

    Raises:
        TooManyRows: the question has too many groups.
    """
    files: list[Path] = []
    missing: list[str] = []
    elsewhere: Sequence[SegmentName] = request.last_put
    for each in request.stores:
        try:
            store = open_store(each.url)
            listed = list_segments(store, request.first_day, request.last_day)
            paths = local_files(store, listed, cache)
            files += without_replaced(zip((name for name, _ in listed), paths, strict=True))
            elsewhere = absent(store, elsewhere, cache)
        except (StoreUnavailable, MissingPackages, CacheTooSmall, UnusableCache) as error:
            missing.append(f"the store {each.name} could not be read: {error}")
            elsewhere = ()
    missing += [
        f"agent {name.agent} of {name.region} has put its segments into another folder or bucket, which has {name}: "
        "a folder must be the same one for all agents and control planes"
        for name in elsewhere
    ]
    rows = query(files, request)
    unknown = sum(row.unknown_requests for row in rows)
    if unknown:
        missing.append(f"{unknown} requests ran when their agent died; what they used is not known")
    shown, others = largest(rows, request)
    days = request.first_day, request.last_day
    capacity = capacity_rows(files, request)
    return UsageAnswer(*days, tuple(shown), len(files), tuple(missing), others=others, capacity=capacity)


def largest(rows: Sequence[UsageRow], request: UsageRequest) -> tuple[Sequence[UsageRow], UsageRow | None]:
    """Return the rows that the question wants, and the sums of the others; None if there are none."""
    if request.top is None:
        return rows, None
    ordered = sorted(rows, key=lambda row: -getattr(row, request.order.value))
    return ordered[: request.top], sum_of(ordered[request.top :]) if len(ordered) > request.top else None


def query(files: Sequence[Path], request: UsageRequest) -> list[UsageRow]:
    """Return the sums over local segments, ordered by group.

    Raises:
        TooManyRows: the question has too many groups.
    """
    if not files:
        return []
    # By position, since a column of a dimension may have the name of the column that it is made from.
    names = ", ".join(str(number) for number in range(1, len(request.by) + 1))
    group = f"GROUP BY {names} ORDER BY {names}" if names else ""
    select = ", ".join([*columns_of(request), _SUMS])
    condition = f"kind <> {RecordKind.CAPACITY:d}"
    if request.tenant is not None:
        condition += " AND tenant = ?"
    values = [] if request.tenant is None else [request.tenant]
    found = run(f"SELECT {select} FROM records WHERE {condition} {group} LIMIT {MAX_ROWS + 1}", files, request, values)
    if len(found) > MAX_ROWS:
        raise TooManyRows(f"the answer has more than {MAX_ROWS} rows; ask for fewer dimensions or days")
    return [_row(request.by, row) for row in found if names or row[0] or row[1]]


def _row(by: Sequence[Dimension], values: Sequence[Any]) -> UsageRow:
    group = {each.value: label(each, value) for each, value in zip(by, values, strict=False)}
    sums = zip(UsageRow.__struct_fields__[1:], values[len(by) :], strict=True)
    return msgspec.convert({"group": group, **{name: value or 0 for name, value in sums}}, UsageRow, strict=False)
