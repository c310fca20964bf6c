"""Time to sum up a month of the ledger: generates segments, and asks the questions of `penstock usage`.

Run by `make bench-usage`. The segments have the layout of a compacted month: one of each day and region.
"""

from __future__ import annotations

import argparse
import shutil
import time
from datetime import date, timedelta
from pathlib import Path

import duckdb

from control_plane.usage.usage_query import answer
from control_plane.usage.usage_request import Dimension, StoreToRead, UsageRequest
from penstock.ledger.segment_names import COMPACTED, SegmentName

REGIONS = ("eu-de", "eu-es", "us-east")
DAYS = 30
FIRST = date(2026, 11, 1)
TENANTS, MODELS = 500, 8
MAX_S = 10.0
"""Time (s) that each question may take on two cores."""

QUESTIONS = {
    "by tenant, model, region": (Dimension.TENANT, Dimension.MODEL, Dimension.REGION),
    "by region, with idle time": (Dimension.REGION,),
    "by tenant, day": (Dimension.TENANT, Dimension.DAY),
}

ROWS = """
SELECT
    CASE WHEN i % 500 = 2 THEN 5 WHEN i % 20 = 0 THEN 1 WHEN i % 50 = 1 THEN 2 ELSE 0 END::BIGINT AS kind,
    ({start} + i * 86400000 // {rows})::BIGINT AS at_ms,
    to_hex(hash(i + {salt})) AS request_id,
    'tenant-' || (hash(i) % {tenants}) AS tenant,
    'psk-' || to_hex(hash(i % 2000)) AS key,
    'model-' || (hash(i * 7) % {models}) AS model,
    'chat' AS route,
    '{region}' AS origin,
    '{region}-' || (i % 34) AS agent,
    CASE WHEN i % 11 = 0 THEN 'eu-es' ELSE '{region}' END AS region,
    'h100' AS gpu_class,
    CASE WHEN i % 100 = 3 THEN 'client_left' ELSE 'ok' END AS outcome,
    200::BIGINT AS status,
    (hash(i * 3) % 8000)::BIGINT AS input_tokens,
    (hash(i * 3) % 4000)::BIGINT AS cached_tokens,
    (hash(i * 5) % 1000)::BIGINT AS output_tokens,
    (hash(i * 5) % 10000) / 1000.0::DOUBLE AS gpu_s,
    (hash(i * 5) % 1000) / 1e5::DOUBLE AS price,
    (hash(i * 5) % 10000) / 1e6::DOUBLE AS gpu_cost,
    0::BIGINT AS egress_bytes,
    i % 100 = 3 AS is_estimated,
    i % 50 = 1 AS is_overhead,
    '0123456789ab' AS policy_digest,
    CASE WHEN i % 500 = 2 THEN 2400.0 ELSE 0.0 END AS ready_gpu_s,
    0.0 AS unready_gpu_s,
    0.0 AS capacity_cost,
    (hash(i * 9) % 2000)::BIGINT AS first_byte_ms,
    (hash(i * 9) % 20000)::BIGINT AS total_ms,
    'first_byte 1.5 0.99' AS objective,
    hash(i * 9) % 2000 < 1500 AS is_within
FROM range({rows}) t(i)
"""


def generate(folder: Path, requests: int) -> int:
    """Write the segments of a month; returns their size in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    rows = requests // (DAYS * len(REGIONS))
    size_bytes = 0
    with duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as connection:
        for number in range(DAYS):
            day = FIRST + timedelta(days=number)
            start = (day - date(1970, 1, 1)).days * 86_400_000
            for index, region in enumerate(REGIONS):
                path = folder / str(SegmentName(day, region, COMPACTED, start, 1))
                path.parent.mkdir(parents=True)
                sql = ROWS.format(
                    start=start, rows=rows, salt=number * 3 + index, tenants=TENANTS, models=MODELS, region=region
                )
                connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
                size_bytes += path.stat().st_size
    return size_bytes


def main() -> None:
    """Generate, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, default=Path("out/bench/usage"))
    parser.add_argument("--keep", action="store_true", help="keep the generated segments, and use those of before")
    given = parser.parse_args()
    if not (given.keep and given.folder.exists()):
        began = time.monotonic()
        size_bytes = generate(given.folder, given.requests)
        print(f"generated {given.requests:,} records, {size_bytes / 1e9:.2f} GB, in {time.monotonic() - began:.0f} s")
    store = StoreToRead("bench", given.folder.resolve().as_uri())
    last = FIRST + timedelta(days=DAYS - 1)
    slow = False
    for name, by in QUESTIONS.items():
        wall, cpu = time.monotonic(), time.process_time()
        found = answer(UsageRequest((store,), FIRST, last, by), given.folder / "cache")
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        counted = sum(row.requests for row in found.rows)
        print(f"{name}: {wall:.1f} s, {cpu:.1f} s of CPU; {len(found.rows)} rows, {counted:,} requests")
        slow |= wall > MAX_S
    if not given.keep:
        shutil.rmtree(given.folder)
    if slow:
        raise SystemExit(f"a question took more than {MAX_S:g} s")


if __name__ == "__main__":
    main()
