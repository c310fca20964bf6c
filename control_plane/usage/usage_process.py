"""Main module of a process that answers one question about usage, from standard input to standard output."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import msgspec

from control_plane.usage.segment_files import CACHE_VARIABLE
from control_plane.usage.usage_request import UsageAnswer, UsageRequest

NICENESS = 10


class UsageReply(msgspec.Struct, frozen=True):
    """The answer, or why there is none."""

    answer: UsageAnswer | None = None
    problem: str = ""


def cache_folder() -> Path:
    """Return the folder of cached segments: PENSTOCK_USAGE_CACHE, or one of this user in the temporary folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path(tempfile.gettempdir()) / f"penstock-usage-{os.getuid()}")


def main(replies: BinaryIO) -> None:
    """Answer the question on standard input."""
    os.nice(NICENESS)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=UsageRequest)
    replies.write(msgspec.json.encode(_reply(request)))


def _reply(request: UsageRequest) -> UsageReply:
    try:
        from control_plane.usage.usage_query import TooManyRows, answer
    except ImportError as error:
        return UsageReply(problem=f"{error.name} is not installed on the control plane; install penstock[usage]")
    try:
        return UsageReply(answer(request, cache_folder()))
    except TooManyRows as error:
        return UsageReply(problem=str(error))
