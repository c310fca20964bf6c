"""Uploads in parts, as of OpenAI's API: the parts of a file, which is checked once it is complete.

Source: https://platform.openai.com/docs/api-reference/uploads
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

import msgspec

from penstock.jobs.job_records import ExpiresAfter

LIFETIME_S: Final = 86_400
"""Time (s) after its creation for which an upload can be completed."""

MAX_PARTS: Final = 10_000
"""Maximum number of parts of one upload."""

MAX_SIGNED_PARTS: Final = 1_000
"""Number of parts of one upload that can have signed URLs."""


class UploadState(StrEnum):
    """A state of an upload."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class NewUpload(msgspec.Struct, frozen=True):
    """The body of a request that creates an upload."""

    filename: str
    purpose: str
    bytes: int
    expires_after: ExpiresAfter | None = None


class PartUrls(msgspec.Struct, frozen=True):
    """The body of a request for signed URLs."""

    parts: int
    """Number of parts; a repeated request has URLs of the same parts."""


class Completion(msgspec.Struct, frozen=True):
    """The body of a request that completes an upload."""

    part_ids: tuple[str, ...]
    """The parts of the file in its order."""
    md5: str | None = None
    """MD5 of the whole file in hexadecimal digits; None for no check."""


class UploadRecord(msgspec.Struct, frozen=True):
    """An upload as it was created. It never changes."""

    id: str
    filename: str
    size_bytes: int
    """Size of the file, which the parts must have together."""
    created_at: int
    """Unix time (s)."""
    expires_at: int
    """Unix time (s)."""
    file_expires_after_s: int | None = None
    """Age (s) at which the file expires; None: it is kept as long as the store keeps files."""


class UploadEnd(msgspec.Struct, frozen=True):
    """The end of an upload, which is written once."""

    state: UploadState
    file_id: str = ""
    """The file of a completed upload."""
    part_ids: tuple[str, ...] = ()
    """The parts of a completed upload."""


class UploadProblem(msgspec.Struct, frozen=True):
    """Why a completion failed for which no request waited any more; see `BadInput`."""

    asked: Completion
    status: int
    code: str
    message: str
    param: str | None = None


def state_of(record: UploadRecord, end: UploadEnd | None, now: float) -> UploadState:
    """The state of an upload at `now` (Unix time, s)."""
    if end is not None:
        return end.state
    return UploadState.PENDING if now < record.expires_at else UploadState.EXPIRED


def signed_part(upload: str, number: int) -> str:
    """The identifier of a part that has signed URLs: always the same one for its number, from 0."""
    return f"part_{sha256(f'{upload}/{number}'.encode()).hexdigest()[:32]}"


def upload_object(record: UploadRecord, state: UploadState, file: dict[str, Any] | None) -> dict[str, Any]:
    """An upload as OpenAI's API shows it.

    Args:
        file: its file; None if it has none.
    """
    return {
        "id": record.id,
        "object": "upload",
        "bytes": record.size_bytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": "batch",
        "status": state.value,
        "expires_at": record.expires_at,
        "file": file,
    }
