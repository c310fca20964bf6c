"""When a file expires: by the age that its tenant has set, or by the retention of its store, whichever is first.

Source: `expires_after` of https://platform.openai.com/docs/api-reference/files/create.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from penstock.jobs.job_records import FileRecord

MIN_SECONDS: Final = 3600
MAX_SECONDS: Final = 2_592_000
"""Limits (s) of an age, as OpenAI's."""


class ExpiresAfter(msgspec.Struct, frozen=True):
    """The age at which a file expires."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=MIN_SECONDS, le=MAX_SECONDS)]


def expires_at(record: FileRecord, retention_s: float) -> int:
    """Unix time (s) at which a file expires; see `JobStore.retention_s`."""
    by_age = record.created_at + int(retention_s)
    return by_age if record.expires_at is None else min(record.expires_at, by_age)


def expiring_since(record: FileRecord, retention_s: float) -> float:
    """The Unix time (s) by whose mark a file is deleted once it expires."""
    return expires_at(record, retention_s) - retention_s
