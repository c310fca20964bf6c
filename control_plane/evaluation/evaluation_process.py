"""Main module of an evaluation process: runs one job at a time, within limits of memory and time.

A job and its reply are preceded by their length, on standard input and output. The process ends when standard input is
closed, or when no job has arrived for some time.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from typing import BinaryIO

import msgspec

from control_plane.evaluation.evaluation_jobs import Job, Refused, run_job

MAX_MEMORY_BYTES = 1 << 30
"""Maximum address space (bytes) of the process."""

MAX_IDLE_S = 60.0
"""Time (s) without a job after which the process ends."""

MAX_JOB_S = 60
"""Time (s) after which SIGALRM ends the process during a job; the parent process normally kills the process earlier."""

LENGTH_BYTES = 4

NICENESS = 10

JOB_DECODER = msgspec.msgpack.Decoder(Job)


class Reply(msgspec.Struct, frozen=True):
    """The result of one job."""

    response: bytes = b""
    """The response in JSON; empty if the job was refused."""
    refusal: Refused | None = None


def main(replies: BinaryIO) -> None:
    """Run jobs until standard input is closed, or no job has arrived for MAX_IDLE_S, and write a reply to each."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    jobs = sys.stdin.buffer
    # `jobs` has a buffer that `select` ignores. The buffer is empty between jobs: the parent sends one job at a time.
    while select.select([jobs], [], [], MAX_IDLE_S)[0] and (encoded := _read(jobs)):
        signal.alarm(MAX_JOB_S)
        reply = _reply(encoded)
        signal.alarm(0)
        encoded_reply = msgspec.msgpack.encode(reply)
        replies.write(len(encoded_reply).to_bytes(LENGTH_BYTES, "big") + encoded_reply)
        replies.flush()


def _read(jobs: BinaryIO) -> bytes:
    return jobs.read(int.from_bytes(jobs.read(LENGTH_BYTES), "big"))


def _reply(encoded: bytes) -> Reply:
    try:
        result = run_job(JOB_DECODER.decode(encoded))
        return Reply(refusal=result) if isinstance(result, Refused) else Reply(msgspec.json.encode(result))
    except MemoryError:
        return Reply(refusal=Refused(f"the evaluation needs more than {MAX_MEMORY_BYTES >> 20} MiB of memory"))
