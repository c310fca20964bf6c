"""`penstock-agent` that is killed at a point of its work on results: `python -m tests.support.dying_agent POINT`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from regional_agent.cli import main
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.job_storage import JobStorage
from regional_agent.ledger.held_files import HeldFile, HeldFiles


def die(*_: Any, **__: Any) -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60.0)


class _Fatal:
    """A path whose removal kills the process."""

    unlink = rename = staticmethod(die)


def _before_files() -> None:
    HeldFiles._write = die  # type: ignore[assignment]


def _before_segment() -> None:
    write = HeldFiles._write

    def written(self: HeldFiles, files: Any) -> None:
        write(self, files)
        die()

    HeldFiles._write = written  # type: ignore[method-assign]


def _after_segment() -> None:
    put_record = JobStorage.put_record

    async def put(self: JobStorage, path: str, record: Any) -> None:
        await put_record(self, path, record)
        if "/segments/" in path:
            die()

    JobStorage.put_record = put  # type: ignore[method-assign]


def _in_spool() -> None:
    release = HeldFiles.release

    def released(self: HeldFiles, file: HeldFile) -> None:
        release(self, file._replace(path=_Fatal()))  # type: ignore[arg-type]

    HeldFiles.release = released  # type: ignore[method-assign]


def _after_release() -> None:
    release = HeldFiles.release

    def released(self: HeldFiles, file: HeldFile) -> None:
        release(self, file)
        die()

    HeldFiles.release = released  # type: ignore[method-assign]


def _after_end() -> None:
    end = BatchStore.end

    async def ended(*arguments: Any) -> bool:
        await end(*arguments)
        die()
        return True

    BatchStore.end = ended  # type: ignore[method-assign]


POINTS: dict[str, Callable[[], None]] = {
    "before the files": _before_files,
    "before the segment": _before_segment,
    "after the segment": _after_segment,
    "in the spool": _in_spool,
    "after the release": _after_release,
    "after the end": _after_end,
}
"""The points, in the order of the work on one segment."""

if __name__ == "__main__":
    point = sys.argv.pop()
    POINTS[point]()
    main()
