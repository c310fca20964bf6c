"""The GPU time that served nothing: what agents recorded of the endpoints, less what requests used.

Every agent of a region records the same endpoints, so the largest amounts of an interval count; an agent that has just
started and has not probed any endpoint does not make a region idle. A time that no agent recorded is not known, and
neither its GPU time nor what ended in it counts. By model, this holds for records of earlier releases, which have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from control_plane.usage.segment_query import columns_of, label, run
from control_plane.usage.usage_request import CAPACITY_DIMENSIONS, Dimension, GpuTimeRow, UsageRequest
from penstock.ledger.capacity_meter import INTERVAL_S
from penstock.ledger.ledger_record import RecordKind

_INTERVAL_MS: Final = int(INTERVAL_S * 1000)

_SQL: Final = f"""
, of_agent AS (
    SELECT at_ms // {_INTERVAL_MS} AS interval, region, gpu_class{{model}}, agent, sum(ready_gpu_s) AS ready,
        sum(ready_gpu_s + unready_gpu_s) AS total, sum(capacity_cost) AS cost
    FROM records WHERE kind = {RecordKind.CAPACITY:d}{{named}} GROUP BY ALL
), had AS (
    SELECT interval, region, gpu_class{{model}}, max(ready) AS ready, max(total) AS total, max(cost) AS cost
    FROM of_agent GROUP BY interval, region, gpu_class{{model}}
), used AS (
    SELECT at_ms // {_INTERVAL_MS} AS interval, region, gpu_class{{model}}, sum(gpu_s) AS used,
        sum(gpu_cost) AS used_cost
    FROM records WHERE gpu_s > 0 GROUP BY ALL
), known AS (
    SELECT interval * {_INTERVAL_MS} AS at_ms, * FROM (
        SELECT * FROM had UNION ALL BY NAME SELECT used.* FROM used SEMI JOIN had USING (interval, region)
    )
)
SELECT {{columns}} sum(ready), sum(total), sum(used), sum(cost), sum(used_cost), count(DISTINCT (interval, region))
FROM known {{group}}"""


def capacity_rows(files: Sequence[Path], request: UsageRequest) -> tuple[GpuTimeRow, ...]:
    """Return the GPU time of each group; none if the question is about one tenant or has other dimensions."""
    if not files or request.tenant is not None or not CAPACITY_DIMENSIONS.issuperset(request.by):
        return ()
    names = ", ".join(each.value for each in request.by)
    columns = "".join(f"{column}, " for column in columns_of(request))
    by_model = Dimension.MODEL in request.by
    model, named = (", model", " AND model <> ''") if by_model else ("", "")
    group = f"GROUP BY {names} ORDER BY {names}" if names else ""
    rows = []
    for row in run(_SQL.format(columns=columns, group=group, model=model, named=named), files, request):
        ready, total, used, cost, used_cost, intervals = (value or 0 for value in row[len(request.by) :])
        # A name without endpoints that used GPU time is an adapter, whose time the idle share of its model lacks.
        if not (total or (by_model and used)):
            continue
        group_of = {each.value: label(each, value) for each, value in zip(request.by, row, strict=False)}
        idle = max(0.0, 1.0 - used / total) if total else 0.0
        idle_cost = max(0.0, cost - used_cost)
        rows.append(GpuTimeRow(group_of, ready, total - ready, used, idle, idle_cost, intervals * INTERVAL_S))
    return tuple(rows)
