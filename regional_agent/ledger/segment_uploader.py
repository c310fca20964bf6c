"""The child process of an agent that puts complete files of the spool into the usage store, and removes them then.

A segment's name follows from the file, so putting it twice changes nothing: whatever process dies, and whenever, each
record is in the store once. Files that a dead agent had open are completed here, too.

Run as `python -m regional_agent.ledger.segment_uploader FOLDER URL EPOCH`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import structlog

from adapters.backoff import full_jitter_s
from adapters.logs import configure_logs
from adapters.object_store.object_store import ObjectStore, StoreUnavailable
from adapters.object_store.store_opening import MissingPackages, open_store
from penstock.ledger.ledger_record import LedgerRecord
from penstock.ledger.segment_names import SegmentName, by_day
from penstock.ledger.spool_format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    BadSpoolFile,
    Opening,
    SpoolFile,
    read_spool,
    records_of,
)
from regional_agent.ledger.held_files import UnsettledFiles
from regional_agent.ledger.spool_file import (
    DAMAGED_SUFFIX,
    HELD_SUFFIX,
    LAST_PUT_SUFFIX,
    OPEN_SUFFIX,
    SEALED_SUFFIX,
    boot_id,
)

EXIT_MISSING_PACKAGES: Final = 3

PASS_S: Final = 2.0
"""Interval (s) between looks at the spool."""

BACKOFF_BASE_S: Final = 2.0
BACKOFF_CAP_S: Final = 60.0

LAST_PASS_S: Final = 15.0
"""Time (s) for putting what is complete after the agent has ended."""

NICENESS: Final = 10

log = structlog.get_logger()

Encode = Callable[[Sequence[LedgerRecord]], bytes]


class SpoolPath(NamedTuple):
    """A file of the spool, by its name."""

    epoch: int
    number: int
    path: Path


class SegmentUploader:
    """Puts the files of one spool into one store."""

    def __init__(self, folder: Path, store: ObjectStore, epoch: int, encode: Encode) -> None:
        """Create an uploader.

        Args:
            epoch: number of the agent's start; open files of this and later starts belong to living agents.
            encode: of `segment_parquet`.
        """
        self._folder = folder
        self._store = store
        self._epoch = epoch
        self._encode = encode
        self._boot = boot_id()
        self._unsettled = UnsettledFiles(folder, self._boot)

    def put_all(self, stop_at: float | None = None) -> int:
        """Put every complete file into the store and remove it; returns their number.

        Args:
            stop_at: time (monotonic, s) after which no further file is put; None for no limit.

        Raises:
            StoreUnavailable: the store refused a file; what is left is in the spool.
        """
        put = 0
        for found in _files(self._folder, SEALED_SUFFIX):
            if stop_at is not None and time.monotonic() > stop_at:
                return put
            file = self._read(found.path)
            if file is not None:
                put += self._put(file.opening, records_of(file, is_last=False), found.path)
        return put + self._put_files_of_the_dead()

    def _put_files_of_the_dead(self) -> int:
        put = 0
        by_epoch: dict[int, list[SpoolPath]] = {}
        for suffix in (OPEN_SUFFIX, HELD_SUFFIX):
            for found in _files(self._folder, suffix):
                if found.epoch < self._epoch:
                    by_epoch.setdefault(found.epoch, []).extend([found] if suffix == OPEN_SUFFIX else [])
        for epoch, files in by_epoch.items():
            if any(_is_locked(found.path) for found in files):
                continue
            begun = []
            for found in files:
                if _has_record(found.path):
                    begun.append(found)
                else:
                    found.path.unlink(missing_ok=True)
            read = [(found.path, file) for found in begun if (file := self._read(found.path)) is not None]
            held = self._unsettled.leave_of_the_dead(epoch, (each for _, file in read for each in file.records))
            for path, file in read:
                records = records_of(file, is_last=path == begun[-1].path, held=held)
                put += self._put(file.opening, records, path)
        return put

    def _put(self, opening: Opening, records: list[LedgerRecord], path: Path) -> int:
        for day, of_day in by_day(records).items():
            name = SegmentName(day, opening.region, opening.agent, opening.epoch, opening.number)
            self._store.put(str(name), self._encode(of_day))
            with suppress(OSError):  # The disk may be full.
                beside = self._folder.with_suffix(f"{LAST_PUT_SUFFIX}.new")
                beside.write_text(str(name))
                beside.replace(self._folder.with_suffix(LAST_PUT_SUFFIX))
        path.unlink(missing_ok=True)
        return 1

    def _read(self, path: Path) -> SpoolFile | None:
        """Read a file; None if it is gone, or damaged, in which case it is kept under another name."""
        try:
            return read_spool(path.read_bytes(), self._boot)
        except FileNotFoundError:
            return None
        except BadSpoolFile as error:
            kept = path.with_suffix(DAMAGED_SUFFIX)
            log.error("a file of the ledger is damaged; its records are missing", file=str(kept), problem=str(error))
            path.rename(kept)
            return None


def _files(folder: Path, suffix: str) -> Iterable[SpoolPath]:
    """Return the files with a suffix, in order."""
    found = []
    for path in folder.glob(f"*{suffix}"):
        epoch, _, number = path.stem.partition("-")
        if epoch.isdigit() and number.isdigit():
            found.append(SpoolPath(int(epoch), int(number), path))
    return sorted(found)


def _is_locked(path: Path) -> bool:
    """Whether a process has the file open for writing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _has_record(path: Path) -> bool:
    """Whether the file was in use: its first record is written when it is."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES + LENGTH_BYTES)
    except FileNotFoundError:
        return False
    return any(head[HEADER_BYTES:])


def run(uploader: SegmentUploader, stop: threading.Event, rng: Random) -> None:
    """Put files until `stop` is set, and then what is complete, within LAST_PASS_S."""
    failures = 0
    while not stop.is_set():
        wait_s = PASS_S
        try:
            uploader.put_all()
            if failures:
                log.info("the usage store is reachable again")
            failures = 0
        except StoreUnavailable as error:
            wait_s = PASS_S + full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=rng)
            failures += 1
            log.warning("segments wait for the usage store", problem=str(error), failures=failures)
        stop.wait(wait_s)
    try:
        uploader.put_all(time.monotonic() + LAST_PASS_S)
    except StoreUnavailable as error:
        log.warning("segments stay in the spool", problem=str(error))


def _wait_for_end(stop: threading.Event) -> None:
    # Not `sys.stdin`, whose lock would abort an interpreter that ends while this thread waits.
    while os.read(0, 4096):
        pass
    stop.set()


def main() -> None:
    """Run the child process."""
    folder, url, epoch = sys.argv[1:]
    stop = threading.Event()
    # The agent ends this process by closing its standard input, which its death does too. A signal to all processes of
    # the service must not end it before the agent has sealed its last file.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    os.nice(NICENESS)
    configure_logs()
    try:
        store = open_store(url)
        from regional_agent.ledger.segment_parquet import encode_segment
    except MissingPackages as error:
        log.error("the ledger's segments cannot be stored", problem=str(error))
        sys.exit(EXIT_MISSING_PACKAGES)
    except ImportError as error:
        log.error("the ledger's segments cannot be stored", problem=str(MissingPackages(error.name or "pyarrow")))
        sys.exit(EXIT_MISSING_PACKAGES)
    except StoreUnavailable as error:
        log.error("the usage store cannot be opened", problem=str(error))
        sys.exit(1)
    run(SegmentUploader(Path(folder), store, int(epoch), encode_segment), stop, Random())


if __name__ == "__main__":
    main()
