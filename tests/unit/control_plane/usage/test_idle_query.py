"""The share of GPU time that served nothing, from the records of agents; a time without a record is not known."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from adapters.object_store.folder_store import FolderStore
from control_plane.usage.compaction import MIN_SEGMENTS, compact
from control_plane.usage.usage_request import Dimension, GpuTimeRow
from penstock.ledger.capacity_meter import INTERVAL_S
from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from tests.unit.control_plane.usage.test_usage_query import DAY, NOON_MS, ask, put, record

ADDED = 7
"""Number of fields that records of the first release lacked."""

INTERVAL_MS = int(INTERVAL_S * 1000)
FIRST_MS = NOON_MS + INTERVAL_MS - 1


def capacity(
    ready: float, unready: float = 0.0, *, agent: str = "a", at_ms: int = FIRST_MS, **where: str
) -> LedgerRecord:
    return LedgerRecord(
        int(RecordKind.CAPACITY),
        at_ms,
        *("",) * 3,
        where.get("model", "m"),
        "",
        where.get("region", "eu-de"),
        agent,
        where.get("region", "eu-de"),
        where.get("gpu_class", "h100"),
        ready_gpu_s=ready,
        unready_gpu_s=unready,
        capacity_cost=(ready + unready) / 100.0,
    )


def used(
    gpu_s: float, at_ms: int = FIRST_MS, gpu_class: str = "h100", region: str = "eu-de", model: str = "m"
) -> LedgerRecord:
    fields = {"gpu_s": gpu_s, "gpu_cost": gpu_s / 100.0, "gpu_class": gpu_class, "region": region}
    found = record(**fields)
    found.at_ms, found.model = at_ms, model
    return found


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def idle(folder: Path, *by: Dimension) -> list[tuple[str, GpuTimeRow]]:
    return [(" ".join(row.group.values()), row) for row in ask(folder, *by).capacity]


def test_agents_of_a_region_count_the_same_endpoints_once(store: FolderStore, tmp_path: Path) -> None:
    starting = capacity(0.0, 400.0, agent="b")
    put(
        store,
        1,
        capacity(300.0, 100.0),
        capacity(600.0, gpu_class="l4"),
        starting,
        used(100.0),
        used(60.0, gpu_class="l4"),
    )
    ((region, row),) = idle(tmp_path, Dimension.REGION)
    assert (region, row.ready_gpu_s, row.unready_gpu_s, row.used_gpu_s) == ("eu-de", 900.0, 100.0, 160.0)
    assert (row.idle_share, row.idle_cost, row.known_s) == (pytest.approx(0.84), pytest.approx(8.4), INTERVAL_S)
    classes = {name: each.idle_share for name, each in idle(tmp_path, Dimension.GPU_CLASS)}
    assert classes == {"h100": pytest.approx(0.75), "l4": pytest.approx(0.9)}


def test_models_have_the_idle_share_of_their_endpoints_where_records_name_them(
    store: FolderStore, tmp_path: Path
) -> None:
    earlier_ms = FIRST_MS - INTERVAL_MS
    put(store, 1, capacity(300.0), capacity(100.0, model="n"), capacity(200.0, agent="b"), used(75.0))
    put(store, 2, capacity(600.0, at_ms=earlier_ms, model=""), used(600.0, earlier_ms), used(20.0, model="m-adapter"))
    rows = {name: (row.ready_gpu_s, row.used_gpu_s, row.idle_share) for name, row in idle(tmp_path, Dimension.MODEL)}
    assert rows == {"m": (300.0, 75.0, 0.75), "m-adapter": (0.0, 20.0, 0.0), "n": (100.0, 0.0, 1.0)}
    ((_, row),) = idle(tmp_path, Dimension.REGION)
    assert (row.ready_gpu_s, row.used_gpu_s, row.known_s) == (1000.0, 695.0, 2 * INTERVAL_S)


def test_an_agent_that_restarted_has_its_parts_summed_up(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, capacity(100.0), capacity(180.0), capacity(250.0, agent="b"))
    assert idle(tmp_path)[0][1].ready_gpu_s == 280.0


def test_what_ended_while_no_agent_recorded_does_not_count(store: FolderStore, tmp_path: Path) -> None:
    later_ms = FIRST_MS + INTERVAL_MS
    put(store, 1, capacity(300.0), used(30.0), used(500.0, later_ms), used(70.0, region="us-east"))
    ((_, row),) = idle(tmp_path, Dimension.DAY)
    assert (row.used_gpu_s, row.idle_share, row.group) == (30.0, pytest.approx(0.9), {"day": "2026-11-27"})


def test_capacity_is_no_request_and_belongs_to_no_tenant(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, capacity(300.0), used(30.0))
    assert [row.group["tenant"] for row in ask(tmp_path, Dimension.TENANT).rows] == ["acme"]
    assert ask(tmp_path, Dimension.TENANT).capacity == ()
    assert ask(tmp_path, Dimension.REGION, tenant="acme").capacity == ()


def test_segments_of_earlier_releases_are_read_and_compacted(store: FolderStore, tmp_path: Path) -> None:
    for number in range(1, MIN_SEGMENTS + 1):
        path = tmp_path / str(put(store, number, used(1.0)))
        old = pq.read_table(path, partitioning=None)
        pq.write_table(old.drop_columns(LedgerRecord.__struct_fields__[-ADDED:]), path)
    assert [row.requests for row in ask(tmp_path, Dimension.REGION).rows] == [MIN_SEGMENTS]
    (row,) = ask(tmp_path, Dimension.OBJECTIVE).rows
    assert (row.group, row.requests, row.objective_requests) == ({"objective": ""}, MIN_SEGMENTS, 0)
    assert ask(tmp_path, Dimension.REGION).capacity == ()
    name = put(store, MIN_SEGMENTS + 1, capacity(300.0))
    before = ask(tmp_path, Dimension.REGION)
    assert compact(store, name, tmp_path / "cache", 1) == MIN_SEGMENTS + 1
    after = ask(tmp_path, Dimension.REGION)
    assert (after.rows, after.capacity, after.segments) == (before.rows, before.capacity, 1)
    assert after.capacity[0].idle_share == pytest.approx(1 - MIN_SEGMENTS / 300.0)
    assert DAY.isoformat() in str(name)
