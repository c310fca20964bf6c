"""Reports of asynchronous requests and batches, for operators only: their numbers and forecasts alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_BATCHES = 32
"""Maximum number of batches that an agent runs, but for those that end at once, and that the status of a region
names."""

MAX_TEXT = 256
"""Maximum length of a text, in characters."""

_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_UnixS = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]


class BatchReport(msgspec.Struct, frozen=True, gc=False):
    """A batch that an agent runs."""

    id: _Text
    completed: _Count
    failed: _Count
    total: _Count
    expires_at: _UnixS | None = None
    """Deadline (Unix time, s); None without one."""
    expected_completion_at: _UnixS | None = None
    """Unix time (s) by the rate so far; None until requests of this run have ended."""


class JobsReport(msgspec.Struct, frozen=True):
    """The jobs of one agent, or of a region."""

    requests: _Count = 0
    """Asynchronous requests that run."""
    waiting_requests: _Count = 0
    """Asynchronous requests that wait in the region."""
    last_request_starts_at: _UnixS | None = None
    """Unix time (s) at which the last of them is expected to start; None if none waits, or none has ended yet."""
    batches: Annotated[tuple[BatchReport, ...], Meta(max_length=MAX_BATCHES)] = ()
    problem: _Text = ""
    """Why the job store cannot be used; empty while it can."""


def jobs_of_region(parts: Iterable[JobsReport | None]) -> JobsReport | None:
    """Return the jobs of a region from the reports of its agents; None if none of them has a job store."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    starts = [part.last_request_starts_at for part in known if part.last_request_starts_at is not None]
    by_id = {batch.id: batch for part in known for batch in part.batches}
    return JobsReport(
        requests=sum(part.requests for part in known),
        waiting_requests=max(part.waiting_requests for part in known),
        last_request_starts_at=max(starts, default=None),
        batches=tuple(by_id[each] for each in sorted(by_id)[:MAX_BATCHES]),
        problem=next((part.problem for part in known if part.problem), ""),
    )
