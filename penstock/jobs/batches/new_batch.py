"""A request for a batch, as of OpenAI's API, and its checks.

Source: https://platform.openai.com/docs/api-reference/batch/create
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.jobs.batches.request_line import LineProblem
from penstock.jobs.job_records import ExpiresAfter, FileRecord

MAX_METADATA: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512
"""Limits of `metadata`, as OpenAI's: pairs, and characters of each key and value."""


class NewBatch(msgspec.Struct, frozen=True):
    """The body of a request that creates a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


def is_metadata_too_large(new: NewBatch) -> bool:
    """Whether the `metadata` of a batch exceeds a limit."""
    pairs = (new.metadata or {}).items()
    return len(pairs) > MAX_METADATA or any(
        len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE for key, value in pairs
    )


def mismatches(file: FileRecord, endpoint: str) -> tuple[LineProblem, ...]:
    """Lines whose `url` is not that of the batch: the first of each `url`."""
    return tuple(
        LineProblem("mismatched_endpoint", f"line {line}: `url` is {url}, and not {endpoint}", line, "url")
        for url, line in sorted(file.urls.items(), key=lambda each: each[1])
        if url != endpoint
    )
