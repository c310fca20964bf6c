"""Answers questions about usage in processes with limits of number and time, so that the API stays responsive."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from contextlib import suppress
from typing import Final

import msgspec

from adapters.garbage_collection import main_command
from control_plane.usage.usage_process import UsageReply
from control_plane.usage.usage_request import UsageAnswer, UsageRequest

TIMEOUT_S: Final = 60.0
"""Time (s) after which a question fails."""

MAX_QUESTIONS: Final = 2
"""Maximum number of questions at a time."""

_MODULE: Final = "control_plane.usage.usage_process"


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
            reply = await self._ask(msgspec.json.encode(request))
        finally:
            self._running -= 1
        if reply.answer is None:
            raise UsageFailed(reply.problem)
        return reply.answer

    async def _ask(self, encoded: bytes) -> UsageReply:
        process = await asyncio.create_subprocess_exec(*main_command(_MODULE), stdin=PIPE, stdout=PIPE)
        try:
            async with asyncio.timeout(self._timeout_s):
                found, _ = await process.communicate(encoded)
            return msgspec.json.decode(found, type=UsageReply)
        except TimeoutError:
            raise UsageFailed(f"the question took more than {self._timeout_s:g} s; ask for fewer days") from None
        except msgspec.DecodeError:
            raise UsageFailed("the process that reads the segments ended; its log has the reason") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
