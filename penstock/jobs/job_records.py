"""What the job store keeps of files and batches, as JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.batches.request_line import LineProblem
from penstock.policy.geography import NOWHERE, Location
from penstock.tenancy.permissions import Patterns

MAX_ERRORS: Final = 100
"""Maximum number of problems of lines that are kept; further ones are not looked for."""

MIN_SECONDS: Final = 3600
MAX_SECONDS: Final = 2_592_000
"""Limits (s) of the age of a file, as those of `expires_after` in
https://platform.openai.com/docs/api-reference/files/create."""


class JobSender(msgspec.Struct, frozen=True):
    """The sender of a job, as it was authenticated."""

    tenant: str
    data_class: str
    key_id: str = ""
    """Identifier of the API key; empty without one."""
    location: Location = NOWHERE
    """Location of the client."""
    models: Patterns = ()
    """Restrictions of the models that the sender may use."""


class FilePart(msgspec.Struct, frozen=True):
    """A part of a file, which is an object of the store. A file is its parts in order."""

    path: str
    size_bytes: int
    lines: int = 0
    """Number of lines; a part has whole lines only."""


class ExpiresAfter(msgspec.Struct, frozen=True):
    """The age at which a file expires, as its tenant sets it."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=MIN_SECONDS, le=MAX_SECONDS)]


class FileRecord(msgspec.Struct, frozen=True):
    """A file. It exists once this record does, and its parts are written before."""

    id: str
    filename: str
    purpose: str
    created_at: int
    """Unix time (s)."""
    size_bytes: int
    parts: tuple[FilePart, ...]
    lines: int = 0
    requests: int = 0
    """Number of lines that are not empty."""
    urls: dict[str, int] = {}
    """The first line with each `url`."""
    expires_at: int | None = None
    """Unix time (s) that the tenant has set; None: the file is kept as long as the store keeps files."""


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch as it was created. It never changes."""

    id: str
    sender: JobSender
    input_file_id: str
    endpoint: str
    completion_window: str
    created_at: int
    """Unix time (s)."""
    expires_at: int
    """Unix time (s)."""
    requests: int
    """Number of requests in the input file."""
    metadata: dict[str, str] | None = None
    webhook: str = ""
    """URL that receives the end of the batch; empty for none."""
    output_expires_after_s: int | None = None
    """Age (s) at which the result files expire; None: they are kept as long as the batch."""


def result_file(batch: BatchRecord, file_id: str, name: str, parts: Sequence[FilePart], now: int) -> FileRecord:
    """The file with the results of a batch that ends at `now` (Unix time, s); `name` is "output" or "error"."""
    after_s = batch.output_expires_after_s
    return FileRecord(
        file_id,
        f"{batch.id}_{name}.jsonl",
        "batch_output",
        now,
        sum(part.size_bytes for part in parts),
        tuple(parts),
        sum(part.lines for part in parts),
        expires_at=None if after_s is None else now + after_s,
    )


class BatchUsage(msgspec.Struct, frozen=True):
    """What requests of a batch have used, by their accounts."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    cached_tokens: int = 0
    models: tuple[str, ...] = ()
    """The models that they name, in order; two of them where there are more."""
    reasoning_tokens: int = 0
    """Part of `answer_tokens`, by the responses that are results."""

    def plus(self, other: BatchUsage) -> BatchUsage:
        """Return the sum."""
        models = self.models if self.models == other.models else tuple(sorted({*self.models, *other.models})[:2])
        return BatchUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.answer_tokens + other.answer_tokens,
            self.cached_tokens + other.cached_tokens,
            models,
            self.reasoning_tokens + other.reasoning_tokens,
        )


NOTHING_USED: Final = BatchUsage()


class BatchCounts(msgspec.Struct, frozen=True):
    """Requests of a batch that have a result."""

    completed: int = 0
    failed: int = 0
    unrun: int = 0
    """Of the failed ones, those that did not run, because the batch was cancelled or expired."""
    usage: BatchUsage = NOTHING_USED

    def plus(self, other: BatchCounts) -> BatchCounts:
        """Return the sum."""
        return BatchCounts(
            self.completed + other.completed,
            self.failed + other.failed,
            self.unrun + other.unrun,
            self.usage.plus(other.usage),
        )


class Claim(msgspec.Struct, frozen=True):
    """The right of one agent to run a job, and the progress of the job under it.

    Claims of a job are numbered. The store accepts one claim with each number.
    """

    number: int
    agent: str
    epoch: int
    """Number of the agent's start."""
    until: float
    """Unix time (s) until which the claim is valid unless it is renewed; 0: it was given up."""
    started_at: float
    """Unix time (s) at which the first agent began to run the batch."""
    counts: BatchCounts = BatchCounts()
    per_s: float = 0.0
    """Results a second under this claim."""
    state: BatchState = BatchState.IN_PROGRESS
    finalizing_at: float | None = None
    """Unix time (s) at which the last request had a result."""
    received_bytes: int = 0
    """Of an asynchronous request: size (bytes) of the response so far."""
    progress: float | None = None
    """Of an asynchronous request: the last `progress` in an event of its response; None without one."""
    accepted: tuple[tuple[int, int], ...] | None = None
    """Earlier claims, each with the number of its last segment that counts; None before they were read. What agents of
    earlier claims write later never counts."""


class Segment(msgspec.Struct, frozen=True):
    """Results that were written together: they count once this record exists, and their lines are not run again."""

    ranges: tuple[tuple[int, int], ...]
    """The lines, as of `ranges_of`."""
    counts: BatchCounts
    output: FilePart | None = None
    errors: FilePart | None = None


class BatchEnd(msgspec.Struct, frozen=True):
    """How a batch has ended. The store accepts one end of each batch."""

    state: BatchState
    at: float
    """Unix time (s)."""
    counts: BatchCounts = BatchCounts()
    started_at: float | None = None
    finalizing_at: float | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[LineProblem, ...] = ()
    claim: int | None = None
    """Number of the claim under which the batch ended; None in stores of earlier releases."""
    cancelling_at: int | None = None
    """Unix time (s) at which its cancellation was requested; None if it was not, or by an earlier release."""
