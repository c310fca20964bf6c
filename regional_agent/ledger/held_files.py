"""Holds the records of a job's requests until the store has their results: a request that runs again is paid once.

The records are in files in the folder of the spool. Such a file is written before the store can have the result, and
removed when its records are in the spool. After the death of the agent between the two, the file is what the spool
lacks, and the job store decides whether it counts. It then becomes a complete file of the spool, whose segment has a
name of its own: putting it twice changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from adapters.files.plain_file import read_plain_file
from penstock.answers.token_counts import Usage
from penstock.jobs.job_records import NOTHING_USED, BatchUsage
from penstock.ledger.ledger_record import LedgerRecord, unpaid
from penstock.ledger.spool_format import (
    LENGTH_BYTES,
    BadSpoolFile,
    JobResult,
    Opening,
    SpoolFile,
    read_spool,
    whole_file,
)
from regional_agent.ledger.spool import Spool
from regional_agent.ledger.spool_file import DAMAGED_SUFFIX, HELD_SUFFIX, SEALED_SUFFIX, UNSETTLED_SUFFIX

RECORD_BYTES: Final = 512
"""Memory (bytes) of a record that is held, rounded up."""


class HeldRecords:
    """Records of the requests of one job that its tenant pays for. The ledger has their starts meanwhile, so that a
    request whose result dies with the agent counts as an unknown end."""

    def __init__(self, files: HeldFiles | None) -> None:
        """Hold nothing yet; `files` keep what waits for the store; None without a ledger."""
        self._files = files
        self._by_id: dict[str, list[bytes]] = {}
        self._usage: dict[str, BatchUsage] = {}
        """What requests without a result have used, in all runs that their tenant pays for."""
        self._saved: dict[JobResult, list[HeldFile]] = {}
        self._is_abandoned = False

    def hold(self, request_id: str, record: bytes) -> None:
        """Hold the encoded record of a finished run."""
        if self._is_abandoned:
            self._append_unpaid(record)
        else:
            self._by_id.setdefault(request_id, []).append(record)

    def used(self, request_id: str, model: str, usage: Usage | None) -> None:
        """Count what a finished run has used; None for nothing that its tenant pays for."""
        tokens = (0, 0, 0) if usage is None else (usage.prompt_tokens, usage.answer_tokens, usage.cached_tokens)
        self._usage[request_id] = self._usage.get(request_id, NOTHING_USED).plus(BatchUsage(*tokens, (model,)))

    def usage_of(self, request_id: str) -> BatchUsage:
        """Return what a request has used. It has its result, and is forgotten."""
        return self._usage.pop(request_id, NOTHING_USED)

    async def save(self, result: JobResult, request_ids: Iterable[str] | None = None) -> None:
        """Keep the records of requests on disk, before the store has their result. A repetition changes nothing.

        Args:
            result: decides whether the runs are paid for.
            request_ids: the requests; None for all.
        """
        if self._files is None or result in self._saved:
            return
        names = list(self._by_id) if request_ids is None else request_ids
        records = [record for name in names for record in self._by_id.pop(name, ())]
        if records:
            files = self._saved[result] = self._files.divide(result, records)
            await self._files.write(files)

    def release(self, last_segment: int) -> None:
        """Record the runs of which the store has the result, up to a segment."""
        if self._files is not None:
            for result in [each for each in self._saved if each.segment <= last_segment]:
                for file in self._saved.pop(result):
                    self._files.release(file)

    def abandon(self) -> None:
        """Record all other runs, and those that end later, as overhead: this agent runs the job no longer. The store
        decides on those whose result it may have."""
        self._is_abandoned = True
        for record in [each for records in self._by_id.values() for each in records]:
            self._append_unpaid(record)
        self._by_id.clear()
        for file in [each for files in self._saved.values() for each in files]:
            if self._files is not None:
                self._files.leave(file)
        self._saved.clear()

    def _append_unpaid(self, encoded: bytes) -> None:
        if self._files is not None:
            record = msgspec.msgpack.decode(encoded, type=LedgerRecord)
            self._files.append(msgspec.msgpack.encode(unpaid(record)))


MAX_FILE_BYTES: Final = 1024 * 1024
"""Size (bytes) of the records of a file, which the spool has room for at once."""

MAX_BYTES: Final = MAX_FILE_BYTES + 8192
"""Maximum size (bytes) of a file with its header and its first record."""

_NEW_SUFFIX: Final = ".new"

log = structlog.get_logger()
_decode = msgspec.msgpack.Decoder(LedgerRecord).decode
_encode = msgspec.msgpack.Encoder().encode


class HeldFile(NamedTuple):
    """Records that wait for a result, and their file."""

    path: Path
    opening: Opening
    records: Sequence[bytes]
    size_bytes: int
    """Size of the records in a file."""


class HeldFiles:
    """The files of one agent."""

    def __init__(self, spool: Spool) -> None:
        """Keep files in the folder of `spool`, which receives the records of those that count."""
        self._spool = spool

    def append(self, record: bytes) -> None:
        """Add a record to the spool; drops it while the ledger is off."""
        self._spool.append(record)

    def divide(self, result: JobResult, records: Iterable[bytes]) -> list[HeldFile]:
        """Return the files that the records need; `write` writes them."""
        found: list[list[bytes]] = []
        size_bytes = MAX_FILE_BYTES
        sizes: list[int] = []
        for record in records:
            needed = len(record) + LENGTH_BYTES + 1
            if size_bytes + needed > MAX_FILE_BYTES:
                found.append([])
                sizes.append(0)
                size_bytes = 0
            found[-1].append(record)
            size_bytes += needed
            sizes[-1] = size_bytes
        return [self._file(result, part, size) for part, size in zip(found, sizes, strict=True)]

    def _file(self, result: JobResult, records: Sequence[bytes], size_bytes: int) -> HeldFile:
        opening = self._spool.new_opening(result)
        return HeldFile(path_of(self._spool.folder, opening, HELD_SUFFIX), opening, records, size_bytes)

    async def write(self, files: Iterable[HeldFile]) -> None:
        """Write files. Nothing while the ledger is off. An error is logged: the records are in memory then."""
        if not self._spool.is_open:
            return
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, tuple(files)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # What follows must find the files as they stay.
            await asyncio.wait({writing})
            raise

    def _write(self, files: Iterable[HeldFile]) -> None:
        try:
            for file in files:
                file.path.write_bytes(whole_file(file.opening, file.records, self._spool.boot))
        except OSError as error:
            log.error("records of a job are in memory only until the job store has its results", problem=str(error))

    def release(self, file: HeldFile) -> None:
        """Add the records of a file to the spool, because they count."""
        if self._spool.append_all(file.records, file.size_bytes):
            file.path.unlink(missing_ok=True)
        elif not _renamed(file.path, SEALED_SUFFIX):
            for record in file.records:
                self._spool.append(record)

    def leave(self, file: HeldFile) -> None:
        """Let the job store decide later whether the records of a file count."""
        if not _renamed(file.path, UNSETTLED_SUFFIX):
            for record in file.records:
                self._spool.append(_encode(unpaid(_decode(record))))


def path_of(folder: Path, opening: Opening, suffix: str) -> Path:
    """Path of a file in the folder of a spool."""
    return folder / f"{opening.epoch}-{opening.number}{suffix}"


def _renamed(path: Path, suffix: str) -> bool:
    try:
        path.rename(path.with_suffix(suffix))
    except OSError:
        return False
    return True


class UnsettledFiles:
    """The files in the folder of a spool whose records the job store decides on."""

    def __init__(self, folder: Path, boot: bytes) -> None:
        """Find the files below `folder`; `boot` identifies the boot of the host."""
        self._folder = folder
        self._boot = boot

    def find(self) -> list[SpoolFile]:
        """Return the files; damaged ones are kept under another name. Blocks."""
        found = []
        for path in sorted(self._folder.glob(f"*{UNSETTLED_SUFFIX}")):
            try:
                file = read_spool(read_plain_file(path, MAX_BYTES).content, self._boot)
            except FileNotFoundError:
                continue
            except BadSpoolFile as error:
                log.error("a file of a job's records is damaged; they are missing", file=str(path), problem=str(error))
                _renamed(path, DAMAGED_SUFFIX)
                continue
            if file.opening.result is not None:
                found.append(file)
        return found

    def settle(self, file: SpoolFile, *, counts: bool) -> None:
        """Make a file a complete one of the spool: as it is if its records count. Blocks. Raises OSError."""
        path = path_of(self._folder, file.opening, UNSETTLED_SUFFIX)
        if not counts:
            records = [_encode(unpaid(record)) for record in file.records]
            self._replace(path, file.opening, records)
        path.rename(path.with_suffix(SEALED_SUFFIX))

    def leave_of_the_dead(self, epoch: int, added: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """Turn the held files of an agent that has died into unsettled ones, without what it has added to its spool.

        Args:
            epoch: number of the agent's start.
            added: the records of the files that the agent had open.

        Returns:
            The records of the unsettled files.
        """
        known = set(map(_encode, added))
        found = [record for file in self.find() if file.opening.epoch == epoch for record in file.records]
        for path in self._folder.glob(f"{epoch}-*{HELD_SUFFIX}"):
            try:
                file = read_spool(read_plain_file(path, MAX_BYTES).content, self._boot)
            except BadSpoolFile:
                # It was not complete: the store cannot have the result.
                path.unlink(missing_ok=True)
                continue
            rest = [record for record in file.records if _encode(record) not in known]
            self._replace(path, file.opening, map(_encode, rest))
            path.rename(path.with_suffix(UNSETTLED_SUFFIX))
            found += rest
        return found

    def _replace(self, path: Path, opening: Opening, records: Iterable[bytes]) -> None:
        beside = path.with_suffix(_NEW_SUFFIX)
        beside.write_bytes(whole_file(opening, records, self._boot))
        beside.replace(path)
