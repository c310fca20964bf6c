"""Evaluates proposed policies for callers of the API, in processes with limits of number, time and memory.

Compiling a bundle takes a CPU for up to a minute and, in a thread, would delay the event loop.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from adapters.garbage_collection import main_command
from control_plane.evaluation.evaluation_jobs import Job
from control_plane.evaluation.evaluation_process import LENGTH_BYTES, MAX_IDLE_S, Reply

TIMEOUT_S = 30.0
"""Time (s) after which an evaluation fails and its process is killed."""

MAX_EVALUATIONS = 2
"""Maximum number of evaluations at a time. A caller has at most one."""

MAX_REPLY_BYTES = 32 << 20

_MODULE = "control_plane.evaluation.evaluation_process"


class Busy(Exception):
    """Too many evaluations are running; the message names the limit."""


class EvaluationFailed(Exception):
    """The evaluation exceeded the time limit, or its process ended."""


class Evaluator:
    """Runs evaluations. Processes are started when they are needed and end when they are idle.

    Args:
        timeout_s: time limit of one evaluation, in seconds.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._callers: set[str] = set()
        """Callers with a running evaluation."""
        self._processes: list[Process] = []
        self._idle: dict[Process, float] = {}
        """Idle processes, each with the time (s) of the event loop since which it is idle."""

    async def evaluate(self, caller: str, job: Job) -> Reply:
        """Run a job for a caller.

        Raises:
            Busy: the caller has a running evaluation, or MAX_EVALUATIONS are running.
            EvaluationFailed: the evaluation exceeded the time limit, or its process ended.
        """
        if caller in self._callers:
            raise Busy(f"{caller} has a running evaluation; wait for it")
        if len(self._callers) >= MAX_EVALUATIONS:
            raise Busy(f"{MAX_EVALUATIONS} evaluations are running")
        self._callers.add(caller)
        try:
            return await self._run(msgspec.msgpack.encode(job))
        finally:
            self._callers.discard(caller)

    async def close(self) -> None:
        """Kill all processes."""
        self._idle.clear()
        for process in list(self._processes):
            await self._kill(process)

    async def _run(self, encoded: bytes) -> Reply:
        process: Process | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                process = await self._take()
                reply = await _exchange(process, encoded)
            self._idle[process] = asyncio.get_running_loop().time()
            return reply
        except TimeoutError:
            raise EvaluationFailed(f"the evaluation took more than {self._timeout_s:g} s of time") from None
        except (OSError, EOFError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EvaluationFailed("the evaluation needed too much memory, or its process was killed") from None
        finally:
            if process is not None and process not in self._idle:
                await self._kill(process)

    async def _take(self) -> Process:
        """Return an idle process, or start one."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            process, idle_since = self._idle.popitem()
            # A process that has been idle for longer may be about to end.
            if process.returncode is None and now - idle_since < MAX_IDLE_S / 2:
                return process
            await self._kill(process)
        process = await asyncio.create_subprocess_exec(
            *main_command(_MODULE),
            stdin=PIPE,
            stdout=PIPE,
            limit=MAX_REPLY_BYTES,
            env=_environment(),
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    async def _kill(self, process: Process) -> None:
        if process in self._processes:
            self._processes.remove(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _exchange(process: Process, encoded: bytes) -> Reply:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded)
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
    if length > MAX_REPLY_BYTES:
        raise EOFError("the reply is too large")
    return msgspec.msgpack.decode(await process.stdout.readexactly(length), type=Reply)


def _environment() -> dict[str, str]:
    """Return the environment without Penstock's settings, and with one OpenBLAS thread: each reserves address space."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return environment | {"OPENBLAS_NUM_THREADS": "1"}
