"""When files expire: by the age that the policy or the tenant sets, and not while a batch reads them."""

from __future__ import annotations

from typing import Final

from penstock.jobs import store_paths
from penstock.jobs.job_records import FileRecord
from penstock.jobs.store_paths import Expiring

MAX_UPLOAD_S: Final = 86_400.0
"""Time (s) after the beginning of an upload from which parts without a record belong to no file."""


def expires_at(record: FileRecord, retention_s: float) -> int:
    """Unix time (s) at which a file expires: by its own age or by `JobStore.retention_s`, whichever is first."""
    by_age = record.created_at + int(retention_s)
    return by_age if record.expires_at is None else min(record.expires_at, by_age)


def expiring_since(record: FileRecord, retention_s: float) -> float:
    """The Unix time (s) by whose mark a file is deleted once it expires."""
    return expires_at(record, retention_s) - retention_s


def kept_since(
    file: Expiring, record: FileRecord | None, retention_s: float, now: float, *, is_read: bool
) -> float | None:
    """The time (Unix, s) of the next mark of a file that is kept; None for one that is deleted.

    Args:
        record: None for a file that was deleted, or may be an upload that still runs.
        retention_s: see `JobStore.retention_s`.
        now: Unix time (s).
        is_read: whether an unfinished batch reads the file.
    """
    if record is None:
        return now if is_read or store_paths.created_at(file.id) >= now - MAX_UPLOAD_S else None
    if record.expires_at is not None and expires_at(record, retention_s) > now:
        # The policy kept files longer when the mark was written.
        return expiring_since(record, retention_s)
    if not is_read:
        return None
    # A file whose tenant has set an age is looked at again within an hour.
    return now if record.expires_at is None else now - retention_s
