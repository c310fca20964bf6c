"""The tenant of a job pays for runs whose results are in the store; what the fleet lost is its own overhead."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.spool_format import JobResult
from tests.integration.test_ledger_records import ledger_in, records_in


def record(request_id: str) -> bytes:
    found = LedgerRecord(RecordKind.REQUEST, 1, request_id, "a", "key", "m", "r", "eu-de", "agent")
    found.outcome, found.input_tokens, found.gpu_s, found.price = "ok", 7, 1.5, 12.0
    return msgspec.msgpack.encode(found)


def result(segment: int) -> JobResult:
    return JobResult("eu-de", "a", "job", 1, segment)


async def test_runs_without_a_result_in_the_store_are_overhead(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    job, other = ledger.hold(), ledger.hold()
    for request_id in ("written", "written", "lost"):
        job.hold(request_id, record(request_id))
    other.hold("other", record("other"))
    await job.save(result(1), ["written", "unknown"])
    await job.save(result(2), ["unknown"])
    job.release(2)
    job.abandon()
    job.hold("late", record("late"))
    await other.save(result(0))
    other.release(0)
    ledger.close()
    paid = [(each.request_id, each.outcome, each.price, each.is_overhead) for each in records_in(tmp_path)]
    assert paid == [
        ("written", "ok", 12.0, False),
        ("written", "ok", 12.0, False),
        ("lost", "shutdown", 0.0, True),
        ("late", "shutdown", 0.0, True),
        ("other", "ok", 12.0, False),
    ]
    assert {(each.input_tokens, each.gpu_s) for each in records_in(tmp_path)} == {(7, 1.5)}
