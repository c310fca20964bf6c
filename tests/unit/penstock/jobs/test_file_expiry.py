"""When files expire."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.jobs.file_expiry import MAX_UPLOAD_S, kept_since
from penstock.jobs.job_records import FileRecord
from penstock.jobs.store_paths import FILE, expiring, new_id

CREATED_AT = 1_700_000_000
RETENTION_S = 3600.0
FILE_ID = new_id(FILE, CREATED_AT, bytes(10))
RECORD = FileRecord(FILE_ID, "a.jsonl", "batch", CREATED_AT, 1, ())
MARK = expiring("t", FILE_ID, CREATED_AT)
EXPIRED = CREATED_AT + RETENTION_S + 1.0


def test_a_file_that_a_batch_reads_is_looked_at_later() -> None:
    assert kept_since(MARK, RECORD, RETENTION_S, EXPIRED, is_read=False) is None
    assert kept_since(MARK, RECORD, RETENTION_S, EXPIRED, is_read=True) == EXPIRED
    aged = replace(RECORD, expires_at=CREATED_AT + 60)
    assert kept_since(MARK, aged, RETENTION_S, EXPIRED, is_read=False) is None
    assert kept_since(MARK, aged, RETENTION_S, EXPIRED, is_read=True) == EXPIRED - RETENTION_S, "it is due at once"


def test_a_file_whose_own_age_is_later_than_its_mark_is_kept_until_then() -> None:
    aged = replace(RECORD, expires_at=CREATED_AT + 7200)
    now = CREATED_AT + 7000.0
    assert kept_since(MARK, aged, 2 * 86_400.0, now, is_read=False) == CREATED_AT + 7200 - 2 * 86_400.0


def test_parts_without_a_record_may_be_an_upload_that_runs() -> None:
    upload_ends = CREATED_AT + MAX_UPLOAD_S
    assert kept_since(MARK, None, RETENTION_S, upload_ends, is_read=False) == upload_ends
    assert kept_since(MARK, None, RETENTION_S, upload_ends + 1.0, is_read=False) is None
    assert kept_since(MARK, None, RETENTION_S, upload_ends + 1.0, is_read=True) == upload_ends + 1.0
