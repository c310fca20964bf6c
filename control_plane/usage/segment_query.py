"""Queries over the records of local segments, by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb

from control_plane.usage.usage_request import Dimension, UsageRequest

MEMORY: Final = "1GB"
THREADS: Final = 2

_MS_PER_DAY: Final = 86_400_000

_RECORDS: Final = """
    SELECT * FROM (
        SELECT * FROM read_parquet(?, hive_partitioning = false, union_by_name = true)
        UNION ALL BY NAME
        SELECT NULL::DOUBLE AS ready_gpu_s, NULL::DOUBLE AS unready_gpu_s, NULL::DOUBLE AS capacity_cost WHERE false
    ) WHERE at_ms >= ? AND at_ms < ?"""
"""The second part has no row: it names columns that segments of earlier releases lack."""


def run(sql: str, files: Sequence[Path], request: UsageRequest, values: Sequence[Any] = ()) -> list[Any]:
    """Return the rows of a query.

    Args:
        sql: what follows the definition of `records`, the records of `files` in the days of the question.
        values: of the parameters in `sql`.
    """
    first = datetime.combine(request.first_day, datetime.min.time(), UTC)
    end = datetime.combine(request.last_day, datetime.min.time(), UTC) + timedelta(days=1)
    times = [int(first.timestamp() * 1000), int(end.timestamp() * 1000)]
    parameters: list[Any] = [[str(path) for path in files], *times, *values]
    with duckdb.connect(config={"threads": THREADS, "memory_limit": MEMORY}) as connection:
        return connection.execute(f"WITH records AS NOT MATERIALIZED ({_RECORDS}) {sql}", parameters).fetchall()


def columns_of(request: UsageRequest) -> list[str]:
    """Return the column of each dimension of a question."""
    return [f"at_ms // {_MS_PER_DAY} AS day" if each is Dimension.DAY else each.value for each in request.by]


def label(dimension: Dimension, value: Any) -> str:
    """Return the name of a group in an answer, from the value of its column."""
    if dimension is Dimension.DAY:
        return datetime.fromtimestamp(int(value) * _MS_PER_DAY / 1000, UTC).date().isoformat()
    return str(value)
