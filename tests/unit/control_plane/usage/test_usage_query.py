"""Sums over segments: each record once, whatever was compacted, put again or is missing."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import ObjectStore
from control_plane.usage import store_upkeep
from control_plane.usage.compaction import MIN_SEGMENTS, compact
from control_plane.usage.segment_files import CacheTooSmall, UnusableCache
from control_plane.usage.store_upkeep import StoreToKeep, UpkeepRequest, keep
from control_plane.usage.usage_query import answer
from control_plane.usage.usage_request import Dimension, StoreToRead, UsageAnswer, UsageOrder, UsageRequest
from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.segment_names import SegmentName
from regional_agent.ledger.segment_parquet import encode_segment

NOON_MS = 1_795_780_800_000
DAY = date(2026, 11, 27)


def record(
    kind: RecordKind = RecordKind.REQUEST, tenant: str = "acme", *, at_ms: int = NOON_MS, **fields: object
) -> LedgerRecord:
    values = {"region": "eu-de", "outcome": "ok", "input_tokens": 10, "output_tokens": 2, "gpu_s": 1.5, "price": 0.25}
    if kind != RecordKind.REQUEST:
        values |= {"input_tokens": 0, "output_tokens": 0, "price": 0.0}
    return LedgerRecord(
        int(kind),
        at_ms,
        "r",
        tenant,
        "",
        "llama",
        "chat",
        "eu-de",
        "eu-de-1",
        **(values | fields),  # type: ignore[arg-type]
    )


def put(
    store: ObjectStore, number: int, *records: LedgerRecord, agent: str = "eu-de-1", day: date = DAY
) -> SegmentName:
    name = SegmentName(day, "eu-de", agent, 5, number)
    store.put(str(name), encode_segment(records))
    return name


def ask(folder: Path, *by: Dimension, **fields: Any) -> UsageAnswer:
    store = StoreToRead("all", f"file://{folder}")
    return answer(replace(UsageRequest((store,), DAY, DAY, by), **fields), folder / "cache")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def test_seconds_at_burst_endpoints_are_summed_apart_from_gpu_time(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, record(gpu_s=0.0, burst_s=3.0, burst_cost=0.75), record())
    put(store, 2, record(RecordKind.LOST_ATTEMPT, gpu_s=0.0, is_overhead=True, burst_s=1.0, burst_cost=0.25))
    (acme,) = ask(tmp_path, Dimension.TENANT).rows
    assert (acme.burst_s, acme.burst_cost, acme.gpu_s) == (4.0, 1.0, 1.5)


def test_requests_are_counted_once_and_gpu_time_wherever_it_was_used(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, record(), record(outcome="engine_cut", is_overhead=True, price=0.0), record(tenant="other"))
    put(store, 2, record(RecordKind.SERVED), record(RecordKind.LOST_ATTEMPT, is_overhead=True))
    put(store, 3, record(RecordKind.UNKNOWN_END, gpu_s=0.0, outcome=""))
    found = ask(tmp_path, Dimension.TENANT)
    acme, other = found.rows
    assert (acme.group, other.group) == ({"tenant": "acme"}, {"tenant": "other"})
    assert (acme.requests, acme.successes, acme.unknown_requests) == (2, 1, 1)
    assert (acme.input_tokens, acme.output_tokens, acme.overhead_tokens) == (10, 2, 12)
    assert (acme.gpu_s, acme.overhead_gpu_s, acme.price) == (6.0, 3.0, 0.25)
    assert found.missing == ("1 requests ran when their agent died; what they used is not known",)
    assert found.segments == 3


def test_usage_is_divided_by_day_and_limited_to_a_tenant_and_days(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, record(), record(tenant="other"))
    (row,) = ask(tmp_path, Dimension.DAY, Dimension.MODEL, tenant="acme").rows
    assert (row.group, row.requests) == ({"day": "2026-11-27", "model": "llama"}, 1)
    assert ask(tmp_path, first_day=date(2026, 11, 28), last_day=date(2026, 11, 29)).rows == ()
    assert ask(tmp_path, Dimension.TENANT, tenant="' OR 1=1 --").rows == ()
    (total,) = ask(tmp_path).rows
    assert (total.group, total.requests) == ({}, 2)


def test_compaction_changes_no_sum_whenever_it_ends(store: FolderStore, tmp_path: Path) -> None:
    names = [put(store, number, record(gpu_s=float(number))) for number in range(MIN_SEGMENTS)]
    before = ask(tmp_path, Dimension.TENANT)
    copies = {str(name): store.read(str(name)) for name in names}
    assert compact(store, names[0], tmp_path / "cache", NOON_MS) == MIN_SEGMENTS
    assert ask(tmp_path, Dimension.TENANT).rows == before.rows
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    # An agent puts a segment again, or the compaction died before it removed them.
    for path, content in copies.items():
        store.put(path, content)
    assert ask(tmp_path, Dimension.TENANT).rows == before.rows
    # A late segment counts, and the next compaction covers what the first one did.
    for number in range(MIN_SEGMENTS):
        put(store, 100 + number, record(gpu_s=0.0))
    assert ask(tmp_path, Dimension.TENANT).rows[0].requests == 2 * MIN_SEGMENTS
    assert compact(store, names[0], tmp_path / "cache", NOON_MS + 1) == MIN_SEGMENTS + 1
    for path, content in copies.items():
        store.put(path, content)
    assert ask(tmp_path, Dimension.TENANT).rows[0].requests == 2 * MIN_SEGMENTS


def test_a_store_that_cannot_be_read_is_named(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, record())
    stores = (StoreToRead("eu", f"file://{tmp_path}"), StoreToRead("us", f"file://{tmp_path}/nowhere"))
    found = answer(UsageRequest(stores, DAY, DAY), tmp_path / "cache")
    assert found.rows[0].requests == 1
    assert found.missing == (f"the store us could not be read: {tmp_path}/nowhere is not a folder",)


def test_segments_that_an_agent_has_put_into_another_store_are_named(store: FolderStore, tmp_path: Path) -> None:
    names = [put(store, number, record()) for number in range(MIN_SEGMENTS)]
    assert ask(tmp_path, last_put=(names[-1],)).missing == ()
    compact(store, names[0], tmp_path / "cache", NOON_MS)
    assert ask(tmp_path, last_put=(names[-1],)).missing == ()
    # The name is that of a folder on another machine; the question is about other days.
    elsewhere = SegmentName(DAY, "eu-fr", "eu-fr-1", 5, 1)
    later = date(2026, 12, 1)
    (problem,) = ask(tmp_path, last_put=(names[-1], elsewhere), first_day=later, last_day=later).missing
    assert problem.startswith("agent eu-fr-1 of eu-fr has put its segments into another folder or bucket")


def test_two_compactions_at_once_count_nothing_twice(store: FolderStore, tmp_path: Path) -> None:
    names = [put(store, number, record()) for number in range(MIN_SEGMENTS)]
    copies = {str(name): store.read(str(name)) for name in names}
    compact(store, names[0], tmp_path / "cache", NOON_MS)
    first = SegmentName(DAY, "eu-de", "_compacted", NOON_MS, 1)
    # The other leader listed the store before the first one had put, and put later.
    store.put(str(first._replace(epoch=NOON_MS + 1)), store.read(str(first)))
    for path, content in copies.items():
        store.put(path, content)
    assert ask(tmp_path, Dimension.TENANT).rows[0].requests == MIN_SEGMENTS
    compact(store, names[0], tmp_path / "cache", NOON_MS + 9)
    assert ask(tmp_path, Dimension.TENANT).rows[0].requests == MIN_SEGMENTS


def test_of_two_compactions_at_once_the_one_with_more_segments_counts(store: FolderStore, tmp_path: Path) -> None:
    names = [put(store, number, record()) for number in range(MIN_SEGMENTS)]
    other = FolderStore(tmp_path / "other")
    for name in names:
        other.put(str(name), store.read(str(name)))
    # The later one did not see the only segment of another agent, which is gone by now.
    put(store, 1, record(), agent="eu-de-2")
    assert compact(store, names[0], tmp_path / "cache", NOON_MS) == MIN_SEGMENTS + 1
    assert compact(other, names[0], tmp_path / "cache", NOON_MS + 1) == MIN_SEGMENTS
    later = str(SegmentName(DAY, "eu-de", "_compacted", NOON_MS + 1, 1))
    store.put(later, other.read(later))
    assert ask(tmp_path).rows[0].requests == MIN_SEGMENTS + 1


def test_upkeep_removes_only_segments_past_their_retention(store: FolderStore, tmp_path: Path) -> None:
    old = SegmentName(date(2026, 11, 20), "eu-de", "eu-de-1", 5, 1)
    store.put(str(old), encode_segment([record()]))
    put(store, 1, record())
    store.put("day=2026-11-20/region=eu-de/notes.txt", b"of a person")
    stores = (StoreToKeep("all", f"file://{tmp_path}", 7), StoreToKeep("gone", "file:///nowhere", 7))
    report = keep(UpkeepRequest(stores, NOON_MS), tmp_path / "cache")
    assert (report.removed, report.compacted) == (0, 0)
    report = keep(UpkeepRequest(stores, NOON_MS + 86_400_000), tmp_path / "cache")
    assert (report.removed, report.problems) == (1, ("the store gone: /nowhere is not a folder",))
    assert not (tmp_path / str(old)).exists()
    assert (tmp_path / "day=2026-11-20/region=eu-de/notes.txt").exists()
    assert ask(tmp_path).rows[0].requests == 1


def test_a_store_with_a_bad_segment_does_not_hold_up_the_upkeep_of_others(tmp_path: Path) -> None:
    bad, good = FolderStore(tmp_path / "bad"), FolderStore(tmp_path / "good")
    for number in range(MIN_SEGMENTS):
        put(bad, number, record())
        put(good, number, record())
    bad.put(str(SegmentName(DAY, "eu-de", "_compacted", NOON_MS, 1)), b"no Parquet file")
    stores = tuple(StoreToKeep(name, f"file://{tmp_path}/{name}") for name in ("bad", "good"))
    report = keep(UpkeepRequest(stores, NOON_MS), tmp_path / "cache")
    assert report.compacted == MIN_SEGMENTS
    (problem,) = report.problems
    assert "the store bad: " in problem
    assert "Parquet" in problem


@pytest.mark.parametrize(
    "error",
    [
        CacheTooSmall("the segments have 9 bytes"),
        UnusableCache("the cache is not a folder"),
        OSError(28, "No space left on device"),
    ],
)
def test_a_store_that_the_cache_cannot_hold_does_not_hold_up_the_upkeep_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def keep_store(store: ObjectStore, settings: StoreToKeep, *others: object) -> tuple[int, int]:
        if settings.name == "bad":
            raise error
        return 1, 2

    monkeypatch.setattr(store_upkeep, "_keep_store", keep_store)
    stores = tuple(StoreToKeep(name, f"file://{tmp_path}/{name}") for name in ("bad", "good"))
    report = keep(UpkeepRequest(stores, NOON_MS), tmp_path / "cache")
    assert (report.removed, report.compacted, report.problems) == (1, 2, (f"the store bad: {error}",))


def test_the_largest_groups_are_named_and_the_others_summed_up(store: FolderStore, tmp_path: Path) -> None:
    put(store, 1, *(record(tenant=f"t{number}", gpu_s=float(number)) for number in range(5)))
    found = ask(tmp_path, Dimension.TENANT, top=2, order=UsageOrder.GPU_S)
    assert [(row.group["tenant"], row.gpu_s) for row in found.rows] == [("t4", 4.0), ("t3", 3.0)]
    assert found.others is not None
    assert (found.others.group, found.others.requests, found.others.gpu_s) == ({}, 3, 3.0)
    assert ask(tmp_path, Dimension.TENANT, top=5).others is None


def test_requests_are_divided_by_the_objective_that_counts_them(store: FolderStore, tmp_path: Path) -> None:
    strict, lax = "first_byte 1.5 0.99", "total 60 0.9"
    put(store, 1, record(), record(objective=strict), record(objective=strict, is_within=True))
    put(store, 2, record(objective=lax, is_within=True))
    found = ask(tmp_path, Dimension.OBJECTIVE).rows
    counts = {row.group["objective"]: (row.requests, row.objective_requests, row.within_objective) for row in found}
    assert counts == {"": (1, 0, 0), strict: (2, 2, 1), lax: (1, 1, 1)}


def test_a_day_has_its_first_and_its_last_moment(store: FolderStore, tmp_path: Path) -> None:
    """2026-10-25 has 25 hours in Berlin, and 24 in a question, whose days are in UTC."""
    first_ms, last_ms = 1_792_886_400_000, 1_792_972_799_999
    day = date(2026, 10, 25)
    put(store, 1, record(at_ms=first_ms - 1), day=date(2026, 10, 24))
    put(store, 2, record(at_ms=first_ms), record(at_ms=last_ms), day=day)
    put(store, 3, record(at_ms=last_ms + 1), day=date(2026, 10, 26))
    rows = ask(tmp_path, Dimension.DAY, first_day=day, last_day=day).rows
    assert [(row.group, row.requests) for row in rows] == [({"day": "2026-10-25"}, 2)]
    assert [row.requests for row in ask(tmp_path, first_day=date(2026, 10, 24), last_day=date(2026, 10, 27)).rows] == [
        4
    ]
    assert ask(tmp_path, first_day=date.min, last_day=date(1, 1, 2)).rows == ()
    put(store, 4, record(), day=date.max)
    assert ask(tmp_path, first_day=date.max, last_day=date.max).rows == ()
