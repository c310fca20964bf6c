"""Starts the child process that puts segments into the usage store, and restarts it when it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from adapters.backoff import full_jitter_s
from regional_agent.ledger.segment_uploader import EXIT_MISSING_PACKAGES, LAST_PASS_S

CHECK_S: Final = 1.0
"""Interval (s) between looks at the policy's store."""

BACKOFF_BASE_S: Final = 1.0
BACKOFF_CAP_S: Final = 60.0

SETTLED_S: Final = 30.0
"""Time (s) after which a process counts as working: one that cannot work ends within seconds of its start."""

STOP_S: Final = LAST_PASS_S + 10.0
"""Time (s) that the child may take to end."""

log = structlog.get_logger()


class UploaderProcess:
    """The child process of one agent."""

    def __init__(self, folder: Path, epoch: int, store_url: Callable[[], str], rng: Random) -> None:
        """Create an uploader without a process.

        Args:
            folder: of the spool.
            epoch: number of the agent's start.
            store_url: returns the URL of the store of the agent's region; empty for none.
        """
        self._folder = folder
        self._epoch = epoch
        self._store_url = store_url
        self._rng = rng
        self._process: asyncio.subprocess.Process | None = None
        self.pid: int | None = None
        self.problem = ""
        """Why the last process ended; empty once one has run for SETTLED_S, or if none is needed."""

    async def run(self) -> None:
        """Keep a process running while the policy has a store for the region."""
        failures = 0
        while True:
            url = self._store_url()
            if not url:
                self.problem = ""
                await asyncio.sleep(CHECK_S)
                continue
            code = await self._run_once(url)
            if url != self._store_url():
                failures, self.problem = 0, ""
                continue
            if code == EXIT_MISSING_PACKAGES:
                self.problem = "pyarrow or obstore is not installed; install penstock[usage]"
            else:
                self.problem = f"the process ended with code {code}"
            wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
            failures += 1
            log.error("the process that stores segments ended, restarting", exit_code=code, wait_s=round(wait_s, 3))
            await asyncio.sleep(wait_s)

    def status(self) -> dict[str, Any]:
        """Return the fields of the status page."""
        return {"uploader_pid": self.pid, "uploader_problem": self.problem or None}

    async def stop(self) -> None:
        """End the process after it has put what is complete. Called after `run` was cancelled."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            log.error("the process that stores segments did not stop in time")
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run_once(self, url: str) -> int:
        """Run one process until it ends or the store changes; returns its exit code."""
        arguments = ("-P", "-m", "regional_agent.ledger.segment_uploader", str(self._folder), url, str(self._epoch))
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=asyncio.subprocess.PIPE
        )
        self.pid = process.pid
        settled_at = time.monotonic() + SETTLED_S
        ended = asyncio.ensure_future(process.wait())
        while not ended.done():
            await asyncio.wait((ended,), timeout=CHECK_S)
            if ended.done():
                break
            if time.monotonic() >= settled_at:
                # Not before: a process that cannot work is restarted, and its reason would be seen for moments only.
                self.problem = ""
            if url != self._store_url():
                await self.stop()
        self.pid = None
        return await ended
