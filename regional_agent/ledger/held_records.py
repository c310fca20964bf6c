"""Holds the records of a job's requests until the store has their results: a request that runs again is paid once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.ledger.ledger_record import LedgerRecord, unpaid
from penstock.ledger.spool_format import JobResult
from regional_agent.ledger.held_files import HeldFile, HeldFiles

RECORD_BYTES: Final = 512
"""Memory (bytes) of a record that is held, rounded up."""


class HeldRecords:
    """Records of the requests of one job that its tenant pays for. The ledger has their starts meanwhile, so that a
    request whose result dies with the agent counts as an unknown end."""

    def __init__(self, files: HeldFiles | None) -> None:
        """Hold nothing yet; `files` keep what waits for the store; None without a ledger."""
        self._files = files
        self._by_id: dict[str, list[bytes]] = {}
        self._saved: dict[JobResult, list[HeldFile]] = {}
        self._is_abandoned = False

    def hold(self, request_id: str, record: bytes) -> None:
        """Hold the encoded record of a finished run."""
        if self._is_abandoned:
            self._append_unpaid(record)
        else:
            self._by_id.setdefault(request_id, []).append(record)

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
