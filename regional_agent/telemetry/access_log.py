"""The access log: one JSON line per request, written by a separate thread.

A request appends its line to a list. Lines that cannot be written in time are dropped and counted, so that a full disk
does not delay requests. A new file is opened after the file was renamed, so log rotation needs no signal. The thread
adds the chain of `penstock/log_chains/access_log_chain.py`, which continues across renamed files, and signs the head of
the chain once a minute.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec
import structlog

from penstock.log_chains.access_log_chain import ChainWriter, epoch_of
from penstock.log_chains.signed_head import sign_head
from penstock.wire.peer_keys import Keyring
from regional_agent.telemetry.access_line import AccessLine

BLOCK_LINES: Final = 128
"""Number of lines that are encoded together, which takes a tenth of a millisecond."""

MAX_BLOCKS: Final = 256
"""Maximum number of blocks that wait for the disk; further blocks are dropped."""

HEADS_SUFFIX = ".heads"
"""Suffix of the file of signed heads, after the name of the access log."""

SIGN_INTERVAL_S = 60.0
"""Interval (s) between signed heads. The last lines, up to this time, are unproved if the agent is killed."""

log = structlog.get_logger()


class LogSigner(NamedTuple):
    """The agent that writes an access log, whose name is part of the chain."""

    region: str = "local"
    agent: str = "agent"
    """Name of the agent, unique in the region."""
    keyring: Keyring | None = None
    """Has the identity that signs the heads; None disables signing."""


class AccessLog:
    """Buffers lines and passes them to the writer thread in blocks. Used from the event loop only."""

    def __init__(
        self,
        file: Path,
        sampled_share: float,
        rng: Random,
        signer: LogSigner | None = None,
        *,
        sign_interval_s: float = SIGN_INTERVAL_S,
    ) -> None:
        """Open the file and start the writer.

        Args:
            sampled_share: share (0-1) of the successful requests that is logged; all other requests are logged.
            signer: the agent that writes the log; None for an unnamed agent without an identity.
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
        """Encoded blocks, each with the number of its first line and the time (Unix, s) at which that request ended."""
        self._next_seq = 1
        signer = signer or LogSigner()
        self._keyring = signer.keyring
        self._sign_interval_s = sign_interval_s
        started_ns = time.time_ns()
        self._flushed = started_ns / 1e9, 0
        """Time (Unix, s) of the last flush, and the number of the last line at that time."""
        self._chain = ChainWriter(epoch_of(signer.region, signer.agent, started_ns), sampled_share)
        """Used by the writer thread only."""
        self._wake = threading.Semaphore(0)
        self._stopping = False
        self._dropped_full = self._dropped_failed = 0
        """Lines dropped because the buffer was full, and because a write failed. Only one thread sets each number."""
        self._descriptor = _open(file)
        self._writer = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._writer.start()

    @property
    def dropped_lines(self) -> int:
        """Lines dropped so far."""
        return self._dropped_full + self._dropped_failed

    def samples(self, ok: bool) -> bool:
        """Whether to log a request; `ok` is whether the request succeeded."""
        return not ok or self._sampled_share >= 1.0 or self._random() < self._sampled_share

    def add(self, line: AccessLine) -> None:
        """Buffer a line."""
        self._lines.append(line)
        if len(self._lines) >= BLOCK_LINES:
            self._encode()

    def flush(self) -> None:
        """Wake the writer. Called periodically, not for each line, because waking a thread costs more than a line."""
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
        """Write the remaining lines and stop the writer; waits at most 5 s for the disk."""
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
        """Sign the head unless the line `last_seq` was dropped; returns the next time (monotonic, s) to sign."""
        if self._keyring is not None and self._chain.head.seq >= last_seq:
            try:
                line = sign_head(self._chain.head, until, final, self._keyring.identity)
                descriptor = _open(self._file.with_name(self._file.name + HEADS_SUFFIX))
                try:
                    _write_whole(descriptor, line)
                finally:
                    os.close(descriptor)
            except OSError as error:
                log.error("head of the access log cannot be signed", file=str(self._file), error=str(error))
        return time.monotonic() + self._sign_interval_s

    def _log_head(self) -> None:
        """Write the head of the chain to the agent's log, so that a copy exists outside the file."""
        if self._chain.head.seq:
            log.info("access log ends or is rotated", file=str(self._file), head=str(self._chain.head))

    def _reopen_if_renamed(self, next_seq: int, next_at: float) -> None:
        """Open a new file if the file was renamed. The next line is `next_seq`, of the time `next_at` (Unix, s)."""
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
    # O_NONBLOCK, because opening a FIFO that no process reads would block the agent; it fails instead.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    os.set_blocking(descriptor, True)
    return descriptor


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append `data`; if it cannot be written completely, remove the part that was written."""
    view = memoryview(data)
    try:
        while view:
            written_bytes = os.write(descriptor, view)
            view = view[written_bytes:]
    except OSError:
        # A line after a part of a line could not be read, and would not follow the last complete line in the chain.
        with suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - (len(data) - len(view)))
        raise
