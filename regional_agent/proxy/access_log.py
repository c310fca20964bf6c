"""One JSON line for each request, kept off the request's path: lines gather, and a thread of its own writes them.

A line costs its request one append. What cannot be written in time is dropped and counted: a full disk slows nobody.
The file is opened anew when it has been renamed, so that log rotation needs no signal.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from random import Random

import msgspec
import structlog

BLOCK_LINES = 128
"""Lines encoded at a time: a tenth of a millisecond."""

MAX_BLOCKS = 256
"""Blocks that wait for the disk; more are dropped."""

log = structlog.get_logger()


class AccessLine(msgspec.Struct, array_like=False, omit_defaults=True, gc=False):
    """What is said of one request. No key, no address, nothing of what was asked or answered."""

    at: float
    """Unix time (s) of its end."""
    request_id: str
    tenant: str
    model: str
    path: str
    kind: str
    """As in `penstock_agent_requests_total`."""
    server: str
    """Region that served it."""
    endpoint: str
    outcome: str
    status: int
    """What the client was answered; 0 where it left before."""
    attempts: int
    received_bytes: int
    """Of the body, or through the tunnel."""
    sent_bytes: int
    total_ms: float
    ttft_ms: float | None = None
    """To the first byte of the answer's body; absent where none was sent."""
    origin: str = ""
    """Region that the client's request landed on."""
    country: str = ""
    """Where the client is, ISO 3166-1 alpha-2; absent where it is not known."""
    subdivision: str = ""
    """The same, ISO 3166-2 without the country part."""


class AccessLog:
    """Gathers lines, from the event loop alone, and hands them to its writer in blocks."""

    def __init__(self, file: Path, sampled_share: float, rng: Random) -> None:
        """Start the writer.

        Args:
            sampled_share: of the requests that went well; the others are always logged.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = file
        self._sampled_share = sampled_share
        self._random = rng.random
        self._encoder = msgspec.json.Encoder()
        self._lines: list[AccessLine] = []
        self._blocks: deque[bytes] = deque()
        self._wake = threading.Semaphore(0)
        self._stopping = False
        self._dropped_in_time = self._dropped_by_disk = 0
        """Each counted by one thread alone."""
        self._descriptor = _open(file)
        self._writer = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._writer.start()

    @property
    def dropped_lines(self) -> int:
        """Lines that were never written: the disk did not keep up, or did not take them."""
        return self._dropped_in_time + self._dropped_by_disk

    def wants(self, ok: bool) -> bool:
        """Whether a request is to be logged."""
        return not ok or self._sampled_share >= 1.0 or self._random() < self._sampled_share

    def add(self, line: AccessLine) -> None:
        """Log a request."""
        self._lines.append(line)
        if len(self._lines) >= BLOCK_LINES:
            self._encode()

    def flush(self) -> None:
        """Hand what has gathered to the writer; called now and then, for to wake a thread takes longer than a line."""
        self._encode()
        if self._blocks:
            self._wake.release()

    def _encode(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        if len(self._blocks) >= MAX_BLOCKS:
            self._dropped_in_time += len(lines)
            return
        self._blocks.append(self._encoder.encode_lines(lines))

    def close(self) -> None:
        """Write what is left and stop; waits for the disk a few seconds at most."""
        self.flush()
        self._stopping = True
        self._wake.release()
        self._writer.join(5.0)

    def _write_all(self) -> None:
        while True:
            self._wake.acquire()
            while self._blocks:
                try:
                    self._reopen_if_renamed()
                    _write_whole(self._descriptor, self._blocks[0])
                except OSError as error:
                    log.error("access log cannot be written; lines are lost", file=str(self._file), error=str(error))
                    self._dropped_by_disk += self._blocks[0].count(b"\n")
                self._blocks.popleft()
            if self._stopping:
                os.close(self._descriptor)
                return

    def _reopen_if_renamed(self) -> None:
        try:
            there = os.stat(self._file)
        except FileNotFoundError:
            there = None
        here = os.fstat(self._descriptor)
        if there is None or (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev):
            fresh = _open(self._file)
            os.close(self._descriptor)
            self._descriptor = fresh


def _open(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _write_whole(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
