"""Checks an input file as it arrives, and writes it to the store, in constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs.batches.request_line import LineChecks, LineProblem
from penstock.jobs.job_records import FilePart, FileRecord
from penstock.policy.kinds.jobs import JobStore
from regional_agent.jobs.api.api_responses import BadInput
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.uploads.input_file import InputFile

SHOWN_PROBLEMS: Final = 10
"""Number of problems of lines in an error message."""

PURPOSE: Final = "batch"
OTHER_PURPOSE: Final = "`purpose` is not `batch`: files are inputs of batches, no route reads others"

_drops: Final[set[asyncio.Task[None]]] = set()
"""Deletions in progress: the event loop alone does not keep tasks."""

log = structlog.get_logger()


class InputLimits(NamedTuple):
    """Whose file an input file is, and what limits it."""

    tenant: str
    store: JobStore
    checks: LineChecks


class InputWriter:
    """Writes one input file. `begin`, then `feed` and `flush` by turns, then `finish`; `close` at any end."""

    def __init__(self, files: FileStore, limits: InputLimits, describe: Callable[[LineProblem], str] | None = None):
        """Write to `files`; `describe` returns the text of a problem, by default its message."""
        self._files = files
        self._limits = limits
        self._describe = describe
        store = limits.store
        self._file = InputFile(limits.checks, store.max_file_bytes, store.max_requests)
        self._id = files.new_id()
        self._written: list[FilePart] = []
        self._left_bytes = 0
        self._is_kept = False
        self.feed = self._file.feed
        """Checks a further part of the file."""

    @property
    def is_refused(self) -> bool:
        """Whether the rest need not be read."""
        return self._file.is_refused

    async def begin(self, freed_bytes: int = 0) -> None:
        """Read what the tenant may still store; `freed_bytes` are deleted once the file is written."""
        used_bytes = await self._files.used_bytes(self._limits.tenant)
        self._left_bytes = self._limits.store.max_tenant_bytes - used_bytes + freed_bytes

    async def flush(self) -> None:
        """Write the complete parts. Raises BadInput."""
        self._check_left()
        if self._file.is_refused:
            return
        parts, self._file.parts = self._file.parts, []
        await self._files.write_parts(self._limits.tenant, self._id, parts, self._written)

    async def finish(self, filename: str, expires_after_s: int | None = None) -> FileRecord:
        """Check the end of the file, and write its record. Raises BadInput with the problems of lines.

        Args:
            expires_after_s: age (s) at which the file expires; None: it is kept as long as the store keeps files.
        """
        file, now = self._file, int(self._files.clock())
        self._check_left()
        if not file.is_refused:
            await asyncio.to_thread(file.finish)
        if file.problems:
            texts = [self._describe(each) if self._describe else each.message for each in file.problems]
            more = len(texts) - SHOWN_PROBLEMS
            shown = "; ".join(texts[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
            raise BadInput(400, file.problems[0].code, shown, None if self._describe else "file")
        await self.flush()
        record = FileRecord(
            self._id,
            filename,
            PURPOSE,
            now,
            file.size_bytes,
            tuple(self._written),
            file.lines,
            file.requests,
            file.urls,
            None if expires_after_s is None else now + expires_after_s,
        )
        await self._files.put(self._limits.tenant, record, self._limits.store.retention_s)
        self._is_kept = True
        return record

    def close(self) -> None:
        """Remove temporary files, and delete what was written of a file that is not finished."""
        self._file.close()
        if not self._is_kept and self._written:
            # Not awaited: the caller may have been cancelled.
            task = asyncio.create_task(self._drop(), name="drop of an input file")
            _drops.add(task)
            task.add_done_callback(_drops.discard)

    def _check_left(self) -> None:
        if self._file.size_bytes > self._left_bytes and not self._file.problems:
            message = f"the files of the tenant would take more than {self._limits.store.max_tenant_bytes} bytes"
            raise BadInput(413, "storage_full", f"{message}; delete files")

    async def _drop(self) -> None:
        try:
            await self._files.drop_parts(tuple(self._written))
        except StoreUnavailable as error:
            log.warning("parts of an input file were not deleted", file=self._id, error=str(error))
