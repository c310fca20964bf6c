"""The results of one claim, written to the store in segments: what a segment's record names counts once, and for good.

An agent that was paused may write segments although another agent has claimed the batch. A claim therefore states which
segments of earlier claims it has read, before it writes its own; no others of them ever count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.jobs.batches.done_lines import DoneLines, ranges_of
from penstock.jobs.job_records import NOTHING_USED, BatchCounts, BatchUsage, Claim, FilePart, Segment
from penstock.jobs.response_memory import ResponseMemory
from penstock.jobs.store_paths import JobPaths
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.ledger.held_files import RECORD_BYTES

FLUSH_BYTES: Final = 4 * 1024 * 1024
"""Size (bytes) of results from which a segment is written at once."""


Saving = Callable[[int, list[int]], Awaitable[None]]
"""Keeps the records of lines, by the number of their segment, which the store has not yet."""

READ_AT_ONCE: Final = 8
"""Segments that are read at a time after another agent's claim: a batch of hours has thousands."""


class _Unwritten:
    """Results that are in no segment yet."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.output: list[bytes] = []
        self.errors: list[bytes] = []
        self.unrun = 0
        """Number of lines that did not run."""
        self.usage = NOTHING_USED


class Results:
    """Results of a batch: those of earlier claims, and those that this claim adds."""

    def __init__(
        self,
        batches: BatchStore,
        paths: JobPaths,
        claim: int,
        lines: int,
        memory: ResponseMemory,
        saving: Saving,
    ) -> None:
        """Start without results, for a batch whose input has so many lines.

        Args:
            claim: number of the claim.
            memory: counts results until they are written.
            saving: called before each write of a segment's record.
        """
        self._saving = saving
        self._memory = memory
        self._held_bytes = 0
        """Size of all results that are not written."""
        self._batches = batches
        self._paths = paths
        self._claim = claim
        self._number = 0
        """Number of the last segment."""
        self._unwritten = _Unwritten()
        self._pending: _Unwritten | None = None
        """Results of the next segment. A write that failed may yet arrive, so it is repeated with the same content."""
        self.unwritten_bytes = 0
        self.done = DoneLines(lines)
        self.counts = BatchCounts()
        """The written results."""
        self.output: list[FilePart] = []
        self.errors: list[FilePart] = []

    async def load(self) -> tuple[tuple[int, int], ...]:
        """Read the segments of earlier claims that count, and return the value of `Claim.accepted` for this claim."""
        accepted: dict[int, int] = {}
        for path in reversed(await self._batches.claims(self._paths)):
            claim = await self._batches.storage.find_record(path, Claim)
            # A claim that accepted nothing yet has written nothing.
            if claim is not None and claim.number < self._claim and claim.accepted is not None:
                last = await self._batches.last_segments(self._paths)
                accepted = {**dict(claim.accepted), claim.number: last.get(claim.number, 0)}
                break
        for number, last_segment in sorted(accepted.items()):
            for first in range(1, last_segment + 1, READ_AT_ONCE):
                numbers = range(first, min(first + READ_AT_ONCE, last_segment + 1))
                reads = (self._batches.segment(self._paths, number, each) for each in numbers)
                for segment in await asyncio.gather(*reads):
                    if segment is not None:
                        self._count(segment)
                        self.done.add_ranges(segment.ranges)
        return tuple(sorted(accepted.items()))

    def add(
        self, line: int, text: bytes, usage: BatchUsage = NOTHING_USED, *, is_error: bool, is_unrun: bool = False
    ) -> None:
        """Add the result of a line; `is_unrun`: an error because the line did not run."""
        if self.done.add(line):
            unwritten = self._unwritten
            unwritten.lines.append(line)
            (unwritten.errors if is_error else unwritten.output).append(text)
            unwritten.unrun += is_unrun
            unwritten.usage = unwritten.usage.plus(usage)
            self.unwritten_bytes += len(text)
            self._held_bytes += len(text) + RECORD_BYTES
            self._memory.hold(len(text) + RECORD_BYTES)

    async def write(self) -> None:
        """Write what was added as a segment: its parts first, then its record. Called by one task at a time.

        Raises:
            StoreUnavailable: the segment does not count; the next call writes it again.
        """
        pending = self._pending
        if pending is None:
            if not self._unwritten.lines:
                return
            pending = self._pending = self._unwritten
            self._unwritten, self.unwritten_bytes = _Unwritten(), 0
            self._number += 1
        segment = Segment(
            ranges_of(pending.lines),
            BatchCounts(len(pending.output), len(pending.errors), pending.unrun, pending.usage),
            await self._part("output", pending.output),
            await self._part("errors", pending.errors),
        )
        await self._saving(self._number, pending.lines)
        await self._batches.storage.put_record(self._paths.segment(self._claim, self._number, "json"), segment)
        self._pending = None
        self._count(segment)
        texts = pending.output + pending.errors
        self._free(sum(map(len, texts)) + RECORD_BYTES * len(texts))

    def free_memory(self) -> None:
        """Count results that are not written no longer."""
        self._free(self._held_bytes)

    def _free(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._memory.free(size_bytes)

    @property
    def last_written(self) -> int:
        """Number of the last segment of this claim that is written; 0 without one."""
        return self._number if self._pending is None else self._number - 1

    @property
    def is_written(self) -> bool:
        """Whether every result is in a segment."""
        return self._pending is None and not self._unwritten.lines

    async def _part(self, name: str, lines: list[bytes]) -> FilePart | None:
        if not lines:
            return None
        path, content = self._paths.segment(self._claim, self._number, name), b"".join(lines)
        await self._batches.storage.put(path, content)
        return FilePart(path, len(content), len(lines))

    def _count(self, segment: Segment) -> None:
        self.counts = self.counts.plus(segment.counts)
        if segment.output is not None:
            self.output.append(segment.output)
        if segment.errors is not None:
            self.errors.append(segment.errors)
