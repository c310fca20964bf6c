"""Holds the records of a job's requests until the store has their results: a request that runs again is paid once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.accounts.outcome_rules import Outcome
from penstock.ledger.ledger_record import LedgerRecord

RECORD_BYTES: Final = 512
"""Memory (bytes) of a record that is held, rounded up."""


class HeldRecords:
    """Records of the requests of one job that its tenant pays for. The ledger has their starts meanwhile, so that a
    request whose result dies with the agent counts as an unknown end."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        """Hold nothing yet; `append` adds an encoded record to the ledger."""
        self._append = append
        self._by_id: dict[str, list[bytes]] = {}
        self._is_abandoned = False

    def hold(self, request_id: str, record: bytes) -> None:
        """Hold the encoded record of a finished run."""
        if self._is_abandoned:
            self._append(_unpaid(record))
        else:
            self._by_id.setdefault(request_id, []).append(record)

    def release(self, request_ids: Iterable[str]) -> None:
        """Record the runs of requests whose results are in the store."""
        for request_id in request_ids:
            for record in self._by_id.pop(request_id, ()):
                self._append(record)

    def release_all(self) -> None:
        """Record all runs, because the store has the result of the job."""
        self.release(list(self._by_id))

    def abandon(self) -> None:
        """Record all other runs, and those that end later, as overhead: this agent runs the job no longer."""
        self._is_abandoned = True
        for records in self._by_id.values():
            for record in records:
                self._append(_unpaid(record))
        self._by_id.clear()


def _unpaid(encoded: bytes) -> bytes:
    record = msgspec.msgpack.decode(encoded, type=LedgerRecord)
    record.outcome, record.price, record.is_overhead = Outcome.SHUTDOWN.value, 0.0, True
    return msgspec.msgpack.encode(record)
