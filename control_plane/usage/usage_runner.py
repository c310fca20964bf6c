"""Answers questions about usage in processes with limits of number and time, so that the API stays responsive."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
import structlog

from adapters.garbage_collection import main_command
from control_plane.usage.store_upkeep import UpkeepReport, UpkeepRequest
from control_plane.usage.usage_process import UsageReply
from control_plane.usage.usage_request import UsageAnswer, UsageRequest

TIMEOUT_S: Final = 60.0
"""Time (s) after which a question fails."""

MAX_QUESTIONS: Final = 2
"""Maximum number of questions at a time."""

UPKEEP_TIMEOUT_S: Final = 1800.0
"""Time (s) after which upkeep is ended; the next run continues it."""

_ANSWERS: Final = "control_plane.usage.usage_process"
_KEEPS: Final = "control_plane.usage.store_upkeep"

_R = TypeVar("_R", bound=msgspec.Struct)

_log = structlog.get_logger(__name__)


class UsageBusy(Exception):
    """Too many questions are being answered."""


class UsageFailed(Exception):
    """A question could not be answered; the message states why."""


class UsageRunner:
    """Answers questions, a process for each."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._running = 0

    async def answer(self, request: UsageRequest) -> UsageAnswer:
        """Answer a question.

        Raises:
            UsageBusy: MAX_QUESTIONS are being answered.
            UsageFailed: the question took too long, has too many groups, or needs packages that are not installed.
        """
        if self._running >= MAX_QUESTIONS:
            raise UsageBusy(f"{MAX_QUESTIONS} questions about usage are being answered; try again")
        self._running += 1
        try:
            reply = await _run(_ANSWERS, request, UsageReply, self._timeout_s)
        finally:
            self._running -= 1
        if reply.answer is None:
            raise UsageFailed(reply.problem)
        return reply.answer

    async def keep(self, request: UpkeepRequest) -> None:
        """Remove and compact segments, and log what was done and what was not."""
        try:
            report = await _run(_KEEPS, request, UpkeepReport, UPKEEP_TIMEOUT_S)
        except UsageFailed as error:
            report = UpkeepReport(problems=(str(error),))
        for problem in report.problems:
            _log.warning("a usage store was not kept", problem=problem)
        if report.removed or report.compacted:
            _log.info("usage stores were kept", removed=report.removed, compacted=report.compacted)


async def _run(module: str, request: msgspec.Struct, reply: type[_R], timeout_s: float) -> _R:
    process = await asyncio.create_subprocess_exec(*main_command(module), stdin=PIPE, stdout=PIPE)
    try:
        async with asyncio.timeout(timeout_s):
            found, _ = await process.communicate(msgspec.json.encode(request))
        return msgspec.json.decode(found, type=reply)
    except TimeoutError:
        raise UsageFailed(f"it took more than {timeout_s:g} s; ask for fewer days") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UsageFailed("the process that reads the segments ended; its log has the reason") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
