"""Spool files are read up to the last complete record, and requests without an end become records of their own."""

from __future__ import annotations

from zlib import crc32

import msgspec
import pytest
from msgspec.structs import replace

from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.segment_names import by_day, parse_segment_name
from penstock.ledger.spool_format import (
    CHECKPOINT_PLACES,
    MAGIC,
    BadSpoolFile,
    JobResult,
    Opening,
    SpoolFile,
    checkpoint,
    header,
    read_spool,
    records_of,
    whole_file,
    with_length,
)

HEADER_BYTES = 64
"""As documented, and not imported: a test fails if a tuned constant changes."""

BOOT, OTHER_BOOT = b"a" * 16, b"b" * 16
OPENING = Opening("eu-de", "eu-de-1", 1_764_273_600_123, 7)


def record(kind: RecordKind, request_id: str, at_ms: int = 0, origin: str = "eu-de") -> LedgerRecord:
    return LedgerRecord(int(kind), at_ms, request_id, "acme", "", "llama", "chat", origin, "eu-de-1")


def content(*records: LedgerRecord) -> bytes:
    return header(BOOT) + b"".join(with_length(msgspec.msgpack.encode(each)) for each in (OPENING, *records))


def checked(data: bytes, place: int, end: int) -> bytes:
    mark = checkpoint(end, crc32(data[HEADER_BYTES:end]))
    return data[:place] + mark + data[place + len(mark) :]


ENDED = record(RecordKind.REQUEST, "r1", 5)


def test_a_file_is_read_up_to_the_end_of_the_records() -> None:
    data = content(ENDED, ENDED)
    assert read_spool(data + bytes(100), BOOT) == SpoolFile(OPENING, [ENDED, ENDED])
    for lost in range(2, 20):
        assert read_spool(data[:-lost], BOOT).records == [ENDED]


def test_a_short_identifier_of_a_boot_is_padded() -> None:
    assert header(b"a") == MAGIC + b"a" + bytes(HEADER_BYTES - len(MAGIC) - 1)
    data = header(b"a") + content(ENDED)[HEADER_BYTES:]
    assert read_spool(data, b"a").records == [ENDED]


def test_a_file_of_an_earlier_boot_is_read_up_to_a_right_checkpoint() -> None:
    one, two = len(content(ENDED)), len(content(ENDED, ENDED))
    data = content(ENDED, ENDED, ENDED) + bytes(50)
    data = checked(checked(data, CHECKPOINT_PLACES[0], one), CHECKPOINT_PLACES[1], two)
    assert len(read_spool(data, OTHER_BOOT).records) == 2
    # The second page was not written before the loss of power.
    torn = data[:one] + bytes(len(data) - one)
    assert len(read_spool(torn, OTHER_BOOT).records) == 1
    # It has the content of an older file.
    stale = data[:one] + with_length(msgspec.msgpack.encode(record(RecordKind.REQUEST, "r9", 5))) + data[two:]
    assert len(read_spool(stale, OTHER_BOOT).records) == 1
    with pytest.raises(BadSpoolFile, match="no record"):
        read_spool(content(ENDED), OTHER_BOOT)


def test_a_file_of_an_earlier_boot_that_ends_within_its_header_has_no_record() -> None:
    for size in range(len(MAGIC), HEADER_BYTES):
        with pytest.raises(BadSpoolFile, match="no record"):
            read_spool(content(ENDED)[:size], OTHER_BOOT)


def test_a_file_that_was_written_at_once_is_read_after_a_loss_of_power_if_it_is_whole() -> None:
    result = JobResult("eu-de", "acme", "batch_1", 2, 3)
    opening = replace(OPENING, result=result)
    data = whole_file(opening, [msgspec.msgpack.encode(ENDED)] * 2, BOOT)
    assert read_spool(data, OTHER_BOOT) == SpoolFile(opening, [ENDED, ENDED])
    with pytest.raises(BadSpoolFile, match="no record"):
        read_spool(data[:-1], OTHER_BOOT)
    assert read_spool(data[:-1], BOOT).records == [ENDED]


def test_damage_within_a_boot_is_an_error() -> None:
    data = bytearray(content(ENDED))
    data[len(content()) + 2] = 0xC1
    with pytest.raises(BadSpoolFile, match="the record at byte"):
        read_spool(bytes(data), BOOT)
    with pytest.raises(BadSpoolFile, match="does not begin"):
        read_spool(b"", BOOT)


def test_starts_without_an_end_are_unknown_ends_of_the_newest_file() -> None:
    start = record(RecordKind.START, "r1")
    forwarded = record(RecordKind.START, "r2", origin="us-east")
    file = SpoolFile(OPENING, [start, start, forwarded, *[record(RecordKind.LOST_ATTEMPT, "r1")] * 2, ENDED])
    assert [(each.kind, each.request_id) for each in records_of(file, is_last=True)] == [
        (RecordKind.LOST_ATTEMPT, "r1"),
        (RecordKind.LOST_ATTEMPT, "r1"),
        (RecordKind.REQUEST, "r1"),
        (RecordKind.UNKNOWN_END, "r1"),
        (RecordKind.UNKNOWN_SERVED, "r2"),
    ]
    assert len(records_of(file, is_last=False)) == 3


def test_the_end_of_a_request_that_no_target_received_ends_no_later_one() -> None:
    """A job sends a request again, with the same identifier, that found no idle slot."""
    file = SpoolFile(OPENING, [ENDED, record(RecordKind.START, "r1")])
    kinds = [each.kind for each in records_of(file, is_last=True)]
    assert kinds == [RecordKind.REQUEST, RecordKind.UNKNOWN_END]


def test_names_of_segments_are_read_back() -> None:
    days = by_day([ENDED, record(RecordKind.REQUEST, "r3", 86_400_000)])
    assert [day.isoformat() for day in days] == ["1970-01-01", "1970-01-02"]
    path = "day=2026-11-27/region=eu-de/eu-de-1-1764273600123-7.parquet"
    name = parse_segment_name(path)
    assert name is not None
    assert (name.agent, name.epoch, name.number, name.is_compacted) == ("eu-de-1", 1764273600123, 7, False)
    assert str(name) == path
    for other in (
        "day=2026-11-27/region=eu-de/notes.parquet",
        "day=2026-13-27/region=eu-de/a-1-1.parquet",
        "../" + path,
    ):
        assert parse_segment_name(other) is None
