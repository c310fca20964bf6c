"""CPU and memory of an upload and of a batch: a generated input file is checked, and its batch runs without engines.

Run by `make bench-jobs`. Each size runs in a process of its own, so that its peak of memory is its own. The requests of
the batch are answered at once, so its CPU is that of the queue: reading lines, starting requests, results, and claims.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.jobs import store_paths
from penstock.jobs.batches.request_line import LineChecks
from penstock.jobs.claims import LEASE_S
from penstock.jobs.job_records import BatchRecord, Claim, FilePart, FileRecord, JobSender
from penstock.jobs.response_memory import ResponseMemory
from penstock.jobs.store_paths import JobPaths
from penstock.policy.kinds.jobs import JobStore
from regional_agent.jobs.batches.batch_run import BatchRun
from regional_agent.jobs.internal_connection import InternalResponse
from regional_agent.jobs.request_attempts import RequestRunner
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_storage import JobStorages
from regional_agent.jobs.storage.job_stores_in_use import OpenStore
from regional_agent.jobs.storage.upload_store import UploadStore
from regional_agent.jobs.uploads.input_file import InputFile
from regional_agent.ledger.held_files import HeldRecords

READ_LINES: Final = 500
"""Lines that arrive at a time: about 64 KiB."""

TENANT: Final = "bench"
CONCURRENCY: Final = 64
MAX_ITEM_US: Final = 150.0
"""Goal: CPU time (µs) of the queue for one request."""

RESPONSE: Final = msgspec.json.encode(
    {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.125] * 32}], "model": "bge-m3"}
)


class Measured(NamedTuple):
    """One run."""

    item_us: float
    """CPU time (µs) for each line."""
    peak_mib: float
    """Peak of the process's memory (MiB)."""
    growth_mib: float
    """Growth of the peak (MiB) since before the first line."""


class _AtOnce:
    """Answers every request at once, after one turn of the event loop."""

    async def send(self, head: bytes, body: bytes, on_part: object = None) -> InternalResponse:
        await asyncio.sleep(0)
        return InternalResponse(200, {b"content-type": b"application/json"}, RESPONSE)


class _NoMetrics:
    def request(self, event: object) -> None:
        pass


def input_lines(requests: int) -> Iterator[bytes]:
    """Yield the parts of an input file of embeddings as they arrive."""
    for first in range(0, requests, READ_LINES):
        yield b"".join(
            b'{"custom_id":"item-%d","method":"POST","url":"/v1/embeddings",'
            b'"body":{"model":"bge-m3","input":"the text of item %d"}}\n' % (number, number)
            for number in range(first, min(requests, first + READ_LINES))
        )


async def run(kind: str, requests: int, folder: str) -> Measured:
    """Upload a file of so many requests into a store in `folder`, and run its batch; `kind` is the part to measure.

    Raises:
        RuntimeError: a line was refused, or has no result.
    """
    storage = JobStorages().of(f"file://{folder}")
    batches, files = BatchStore(storage, "eu-de"), FileStore(storage, Random(1))
    began = _now()
    record = await _upload(files, requests)
    if kind == "upload":
        return _since(began, requests)
    now, batch_id = int(time.time()), files.new_id(store_paths.BATCH)
    sender = JobSender(TENANT, "open")
    batch = BatchRecord(batch_id, sender, record.id, "/v1/embeddings", "24h", now, now + 86_400, requests)
    claim = Claim(1, "bench", 1, now + LEASE_S, float(now))
    await batches.claim(JobPaths(TENANT, batch.id), claim)
    store = OpenStore(JobStore("bench", f"file://{folder}"), files, batches, UploadStore(files.storage))
    runner = RequestRunner(cast(Any, _AtOnce()), cast(Any, _NoMetrics()), HeldRecords(None))
    began = _now()
    end = await BatchRun(batch, claim, store, runner, lambda: CONCURRENCY, ResponseMemory()).run()
    if end is None or end.counts.completed != requests:
        raise RuntimeError(f"the batch ended without all {requests} results: {end}")
    return _since(began, requests)


async def _upload(files: FileStore, requests: int) -> FileRecord:
    file, file_id = InputFile(LineChecks(lambda _: "", lambda _: ""), 1 << 50, 1 << 40), files.new_id()
    written: list[FilePart] = []
    for data in input_lines(requests):
        file.feed(data)
        await _write(files, file_id, file, written)
    file.finish()
    await _write(files, file_id, file, written)
    file.close()
    if file.problems or file.requests != requests:
        raise RuntimeError(f"{file.requests} of {requests} lines were accepted: {file.problems[:1]}")
    now = int(time.time())
    record = FileRecord(
        file_id, "input.jsonl", "batch", now, file.size_bytes, tuple(written), file.lines, requests, file.urls
    )
    await files.put(TENANT, record, retention_s=86_400.0)
    return record


async def _write(files: FileStore, file_id: str, file: InputFile, written: list[FilePart]) -> None:
    parts, file.parts = file.parts, []
    await files.write_parts(TENANT, file_id, parts, written)


def _now() -> tuple[float, float]:
    """CPU time (s) of the process, and the peak of its memory (MiB)."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _since(began: tuple[float, float], requests: int) -> Measured:
    cpu_s, peak_mib = _now()
    return Measured((cpu_s - began[0]) / requests * 1e6, peak_mib, peak_mib - began[1])


def main() -> int:
    """Measure each size in a process of its own; 0 if the queue's CPU for one request is within the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[250_000, 500_000, 1_000_000], help="sizes of uploads")
    parser.add_argument("--batch", type=int, nargs="+", default=[25_000, 50_000, 100_000], help="sizes of batches")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "REQUESTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with TemporaryDirectory() as folder:
            sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run(options.one[0], int(options.one[1]), folder))))
        return 0
    slowest_us = 0.0
    for kind, sizes in (("upload", options.lines), ("batch", options.batch)):
        for requests in sizes:
            command = [sys.executable, "-m", "lab.bench.jobs_bench", "--one", kind, str(requests)]
            found = msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout, type=Measured)
            print(
                f"{kind:6} {requests:>11,} requests: {found.item_us:6.1f} µs CPU for each, "
                f"peak {found.peak_mib:.0f} MiB, {found.growth_mib:.0f} MiB above the start",
                flush=True,
            )
            if kind == "batch":
                slowest_us = max(slowest_us, found.item_us)
    print(f"queue: {slowest_us:.1f} µs CPU for one request; the goal is at most {MAX_ITEM_US:g}")
    return int(slowest_us > MAX_ITEM_US)


if __name__ == "__main__":
    sys.exit(main())
