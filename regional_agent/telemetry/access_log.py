"""One JSON line per request, written by a thread of its own.

A line costs its request one append to a list. Lines that cannot be written in time are dropped and counted, so that a
full disk slows no request. A renamed file is reopened, so that log rotation needs no signal. The thread adds the chain
of `penstock/records/record_chain.py`, which goes on over renamed files, and signs its head once a minute.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from random import Random

import msgspec
import structlog

from penstock.records.record_chain import ChainWriter, epoch_of
from penstock.records.signed_head import sign_head
from penstock.routing.reasons import Reason, Rejection
from penstock.wire.session import Sessions

BLOCK_LINES = 128
"""Lines encoded at a time, which takes a tenth of a millisecond."""

MAX_BLOCKS = 256
"""Blocks that may wait for the disk; further ones are dropped."""

HEADS_SUFFIX = ".heads"
"""File of the signed heads: the access log's name and this."""

SIGN_INTERVAL_S = 60.0
"""Interval (s) between signed heads: the time of a log that stays unproved if its agent is killed."""

log = structlog.get_logger()


class AccessLine(msgspec.Struct, array_like=False, omit_defaults=True, gc=False):
    """One request. Contains no API key, no client address, and no content of request or response."""

    at: float
    """Unix time (s) at its end."""
    request_id: str
    tenant: str
    model: str
    path: str
    kind: str
    """As in `penstock_agent_requests_total`."""
    server: str
    """Serving region."""
    endpoint: str
    outcome: str
    status: int
    """Status of the response; 0 where the client disconnected before."""
    attempts: int
    received_bytes: int
    """Bytes of the body, or through the tunnel."""
    sent_bytes: int
    total_ms: float
    ttft_ms: float | None = None
    """Time to the first byte of the response body; absent where none was sent."""
    origin: str = ""
    """Region whose agent received the client's request."""
    country: str = ""
    """Country of the client, ISO 3166-1 alpha-2; absent where unknown."""
    subdivision: str = ""
    """Subdivision of the client, ISO 3166-2 without the country part; absent where unknown."""

    reason: str = ""
    """Why the request was refused or its response ended early, a code of docs/errors.md; absent for others."""
    continuations: int = 0
    """How often another endpoint had to continue the stream; absent where none had to."""
    work_s: float = 0.0
    """Estimated work: time (s) of the request alone on the reference accelerator; absent where it was not estimated."""

    policy_digest: str = ""
    """SHA-256 of the policy under which its last target was selected; absent where it was refused before, as are the
    following fields."""
    plan_generation: int = 0
    """Generation of the plan by which its last target was selected; absent without a plan."""
    residency_class: str = ""
    """Name of its residency class: the permitted regions, joined by `+`, or `set-` and a digest where they are many."""
    permitted: frozenset[str] | None = None
    """The permitted regions, where the name of the class is a digest; absent for others."""
    rejected: tuple[Rejection, ...] = ()
    """At the origin: each region that residency forbids, with the reason and the rule; absent where it forbids none."""
    tried: Mapping[str, Reason] | None = None
    """Regions that did not start the request, with the reason; absent where there are none."""
    queue_ms: float | None = None
    """Time in the admission queue of this agent; absent where it did not wait."""
    input_tokens: int | None = None
    """Tokens of the prompt as the engine reports them, in the serving region; absent where it does not, and for all but
    one response in 2 ms."""
    output_tokens: int | None = None
    """Tokens of the response, like `input_tokens`."""


class AccessLog:
    """Buffers lines and hands them to the writer thread in blocks. Used from the event loop only."""

    def __init__(
        self,
        file: Path,
        sampled_share: float,
        rng: Random,
        *,
        region: str = "local",
        agent: str = "agent",
        sessions: Sessions | None = None,
        sign_interval_s: float = SIGN_INTERVAL_S,
    ) -> None:
        """Open the file and start the writer.

        Args:
            sampled_share: share of the successful requests that is logged; others are always logged.
            region: of the agent.
            agent: its name, unique in the region.
            sessions: has the identity that signs the head; None signs none.
            sign_interval_s: interval between signed heads, in seconds.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = file
        self._sampled_share = sampled_share
        self._random = rng.random
        self._encoder = msgspec.json.Encoder()
        self._lines: list[AccessLine] = []
        self._blocks: deque[tuple[int, float, bytes]] = deque()
        """Each with the number of its first line, and the time at which that request ended."""
        self._next_seq = 1
        self._sessions = sessions
        self._sign_interval_s = sign_interval_s
        started_ns = time.time_ns()
        self._flushed = started_ns / 1e9, 0
        """Time (Unix, s) of the last flush, and the last line then."""
        self._chain = ChainWriter(epoch_of(region, agent, started_ns), sampled_share)
        """Used by the writer thread only."""
        self._wake = threading.Semaphore(0)
        self._stopping = False
        self._dropped_full = self._dropped_failed = 0
        """Lines dropped because the buffer was full, and because a write failed. Each is set by one thread only."""
        self._descriptor = _open(file)
        self._writer = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._writer.start()

    @property
    def dropped_lines(self) -> int:
        """Lines dropped so far."""
        return self._dropped_full + self._dropped_failed

    def samples(self, ok: bool) -> bool:
        """Whether to log a request; `ok`: it succeeded."""
        return not ok or self._sampled_share >= 1.0 or self._random() < self._sampled_share

    def add(self, line: AccessLine) -> None:
        """Buffer a line."""
        self._lines.append(line)
        if len(self._lines) >= BLOCK_LINES:
            self._encode()

    def flush(self) -> None:
        """Wake the writer. Called from time to time, since waking a thread costs more than a line."""
        now = time.time()
        self._encode()
        self._flushed = now, self._next_seq - 1
        if self._blocks:
            self._wake.release()

    def _encode(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        first_seq = self._next_seq
        self._next_seq += len(lines)
        if len(self._blocks) >= MAX_BLOCKS:
            self._dropped_full += len(lines)
            return
        self._blocks.append((first_seq, lines[0].at, self._encoder.encode_lines(lines)))

    def close(self) -> None:
        """Write the remaining lines and stop; waits for the disk for a few seconds at most."""
        self.flush()
        self._stopping = True
        self._wake.release()
        self._writer.join(5.0)

    def _write_all(self) -> None:
        sign_at = self._sign(*self._flushed)
        while True:
            self._wake.acquire(timeout=max(0.0, sign_at - time.monotonic()))
            stopping, flushed = self._stopping, self._flushed
            while self._blocks:
                first_seq, first_at, block = self._blocks[0]
                try:
                    self._reopen_if_renamed(first_seq, first_at)
                    chained, last = self._chain.chained(block, first_seq)
                    _write_whole(self._descriptor, chained)
                    self._chain.written(last)
                except OSError as error:
                    log.error("access log cannot be written; lines are dropped", file=str(self._file), error=str(error))
                    self._dropped_failed += block.count(b"\n")
                self._blocks.popleft()
            if stopping:
                self._log_head()
                self._sign(*flushed, final=True)
                os.close(self._descriptor)
                return
            if time.monotonic() >= sign_at:
                sign_at = self._sign(*flushed)

    def _sign(self, until: float, last_seq: int, *, final: bool = False) -> float:
        """Sign the head unless the line `last_seq` was dropped; returns when to sign the next (monotonic, s)."""
        if self._sessions is not None and self._chain.head.seq >= last_seq:
            try:
                line = sign_head(self._chain.head, until, final, self._sessions.identity)
                descriptor = _open(self._file.with_name(self._file.name + HEADS_SUFFIX))
                try:
                    _write_whole(descriptor, line)
                finally:
                    os.close(descriptor)
            except OSError as error:
                log.error("head of the access log cannot be signed", file=str(self._file), error=str(error))
        return time.monotonic() + self._sign_interval_s

    def _log_head(self) -> None:
        """Log the end of the chain, where it is kept apart from the file."""
        if self._chain.head.seq:
            log.info("access log ends or is rotated", file=str(self._file), head=str(self._chain.head))

    def _reopen_if_renamed(self, next_seq: int, next_at: float) -> None:
        """Begin a file if the current one was renamed; line `next_seq` of the time `next_at` (Unix, s) is to follow."""
        try:
            current = os.stat(self._file)
        except FileNotFoundError:
            current = None
        opened = os.fstat(self._descriptor)
        if current is None or (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev):
            self._log_head()
            self._sign(next_at, next_seq - 1)
            fresh = _open(self._file)
            os.close(self._descriptor)
            self._descriptor = fresh


def _open(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _write_whole(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
