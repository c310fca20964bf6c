"""Queries over the records of local segments, by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb

from control_plane.usage.usage_request import Dimension, UsageRequest

MEMORY: Final = "1GB"
THREADS: Final = 2

_MS_PER_DAY: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1).toordinal()

_COLUMNS: Final = {
    Dimension.DAY: f"at_ms // {_MS_PER_DAY} AS day",
    Dimension.OBJECTIVE: "coalesce(objective, '') AS objective",
}
"""Columns of dimensions that are not read as they are."""

_ADDED: Final = {
    "ready_gpu_s": "DOUBLE",
    "unready_gpu_s": "DOUBLE",
    "capacity_cost": "DOUBLE",
    "objective": "VARCHAR",
    "is_within": "BOOLEAN",
    "burst_s": "DOUBLE",
    "burst_cost": "DOUBLE",
}
"""Columns that segments of earlier releases lack, and their types; of those that queries read."""

_RECORDS: Final = f"""
    SELECT * FROM (
        SELECT * FROM read_parquet(?, hive_partitioning = false, union_by_name = true)
        UNION ALL BY NAME
        SELECT {", ".join(f"NULL::{type_} AS {name}" for name, type_ in _ADDED.items())} WHERE false
    ) WHERE at_ms >= ? AND at_ms < ?"""
"""The second part has no row: it names columns that segments of earlier releases lack."""


def run(sql: str, files: Sequence[Path], request: UsageRequest, values: Sequence[Any] = ()) -> list[Any]:
    """Return the rows of a query.

    Args:
        sql: what follows the definition of `records`, the records of `files` in the days of the question.
        values: of the parameters in `sql`.
    """
    first, last = (day.toordinal() - _EPOCH for day in (request.first_day, request.last_day))
    times = [first * _MS_PER_DAY, (last + 1) * _MS_PER_DAY]
    parameters: list[Any] = [[str(path) for path in files], *times, *values]
    # What exceeds the memory goes to a directory of this query: without one, DuckDB takes the working directory.
    with (
        TemporaryDirectory(prefix="penstock-usage-") as spill,
        duckdb.connect(config={"threads": THREADS, "memory_limit": MEMORY, "temp_directory": spill}) as connection,
    ):
        return connection.execute(f"WITH records AS NOT MATERIALIZED ({_RECORDS}) {sql}", parameters).fetchall()


def columns_of(request: UsageRequest) -> list[str]:
    """Return the column of each dimension of a question."""
    return [_COLUMNS.get(each, each.value) for each in request.by]


def label(dimension: Dimension, value: Any) -> str:
    """Return the name of a group in an answer, from the value of its column."""
    if dimension is Dimension.DAY:
        return datetime.fromtimestamp(int(value) * _MS_PER_DAY / 1000, UTC).date().isoformat()
    return str(value)
