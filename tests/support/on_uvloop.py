"""Runs a test's coroutine on uvloop, where what it tests runs in earnest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import uvloop

Arguments = ParamSpec("Arguments")


def on_uvloop(test: Callable[Arguments, Awaitable[None]]) -> Callable[Arguments, None]:
    """Make a plain test of an asynchronous one."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        async def body() -> None:
            await test(*args, **kwargs)

        uvloop.run(body())

    return run
